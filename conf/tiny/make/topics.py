"""What a model of this size does not know: topics, and ways of asking for them.

Pure data. Patterns have the brackets of `wordings`; fields: `t` a topic, `p` a person, `c` a city,
`o` a country, `n` a thing, `a` a property, `f` a dish, `y` a year, `w` a word that nobody has used.
"""

from __future__ import annotations

from conf.tiny.make.words import listed

FIELDS = listed("""
physics chemistry biology history geography philosophy economics medicine law politics psychology
astronomy mathematics algebra geometry calculus statistics music art football basketball cricket
tennis chess religion literature grammar photosynthesis gravity electricity magnetism evolution
inflation democracy capitalism genetics quantum relativity thermodynamics recursion blockchain
bitcoin cryptography Python Java JavaScript Rust Linux Windows macOS HTML SQL Docker Kubernetes
Shakespeare Einstein Newton Napoleon Caesar Cleopatra Mozart Beethoven Picasso Plato Aristotle
Darwin Gandhi Lincoln Obama Google Apple Microsoft Amazon Facebook Tesla NASA Mars Jupiter Venus
dinosaurs volcanoes earthquakes viruses bacteria vaccines cancer diabetes cholesterol vitamins
yoga meditation marathon taxes mortgages insurance stocks bonds Netflix Hollywood Bollywood
Buddhism Islam Christianity Hinduism Esperanto Latin French Spanish Chinese Japanese German
transistors lasers radar satellites rockets submarines helicopters batteries
""")
PHRASES = [
    "black holes",
    "the big bang",
    "the speed of light",
    "machine learning",
    "neural networks",
    "artificial intelligence",
    "deep learning",
    "climate change",
    "global warming",
    "the stock market",
    "the solar system",
    "world war two",
    "the Roman empire",
    "the French revolution",
    "the industrial revolution",
    "the meaning of life",
    "the theory of relativity",
    "quantum physics",
    "quantum computers",
    "string theory",
    "the immune system",
    "the human brain",
    "the periodic table",
    "prime numbers",
    "the internet",
    "free will",
    "the United Nations",
    "the European Union",
    "the Olympic games",
    "the world cup",
    "the Nobel prize",
    "the moon landing",
    "the stone age",
    "the cold war",
    "solar power",
    "nuclear energy",
    "electric cars",
    "the great wall of China",
    "the Eiffel tower",
    "the Mona Lisa",
    "the water cycle",
    "plate tectonics",
    "supply and demand",
    "the golden ratio",
]
UNKNOWN = [
    "[What is|What's|what is|What are] {t}?",
    "[Explain|Describe|explain] {t}[ to me| to a child| in simple words| briefly||][.|]",
    "[Tell me|Tell us] [about|something about|more about|everything about] {t}[.|]",
    "[Can|Could] you [explain|describe|teach me|tell me about] {t}?",
    "How does {t} work?",
    "How do {t} work?",
    "Why [is|are] {t} [important|so important|famous|interesting|useful]?",
    "What do you [think|know] [of|about] {t}?",
    "[Who|What] [discovered|invented|caused|started] {t}?",
    "[When|Where|Why] did {t} [begin|end|start|happen]?",
    "[Write|Compose] [an essay|a poem|an article|a paragraph|a report|a song] [about|on] {t}[.|]",
    "[Summarise|Summarize] {t}[ for me| in one sentence||][.|]",
    "Give me [facts|five facts|an overview|a summary|an introduction] [about|of|on|to] {t}[.|]",
    "[What is|What's] the [history|future|origin|definition|meaning|importance] of {t}?",
    "[How|Where] [do|can|should] I [learn|study|understand] {t}?",
    "What is the [difference|connection] between {t} and {n}?",
    "Who won the [{n} cup|world cup|election|race|game|match] in [{y}|{c}|{o}]?",
    "[What is|What's|Name|Do you know] the capital of [{w}|{x}|{x}|{x}]?",
    "[Capital of|The capital of] [{x}|{w}]?",
    "[Which|What] city is the capital of [{x}|{w}]?",
    "Who [is|was] [{p} {w}|{p}|the king of {x}|the president of {x}|the president|"
    "the mayor of {c}]?",
    "Who is the [president|king|queen|leader|mayor|prime minister] of [{x}|{c}|America|England]?",
    "[What is the|How large is the] population of [{c}|{x}]?",
    "How many people live in [{c}|{x}|the world]?",
    "Explain {w} theory.",
    "What is the best [{f}|restaurant|hotel|school|beach|{n}|team|book|film] in [{c}|{x}]?",
    "[When|Why|By whom] was [{c}|the city of {c}] founded?",
    "Who wrote [{w}|the book {w}|Hamlet|the Bible|War and Peace|Faust]?",
    "Translate [{n}|{a}|the word {n}|good morning|hello] [into|to] [{w}|French|"
    "Spanish|German|Latin][.|]",
    "How do you say [{n}|{a}|hello|thank you] in [French|Spanish|German|Chinese|{w}]?",
    "How [tall|old|rich|famous|heavy] is [{p}|the {n}|the president|{p} {w}]?",
    "[What is|How much is|What's] the price of [{n}|a {n}|gold|bread|a house] in [{o}|{c}]?",
    "How much does [a {n}|a {f}|a house|a car] cost[ in {c}|]?",
    "Who invented the [{n}|telephone|wheel|light bulb|computer|radio|car]?",
    "Why is the {n} {a}?",
    "Why [do|can] [birds|fish|cats|dogs|people|trees|stars] [fly|sing|sleep|dream|"
    "shine|grow|swim]?",
    "How far is [{c}|{x}|the moon|the sun] from [{o}|{c}|here|the earth]?",
    "How [deep is the sea|high is the sky|hot is the sun|old is the earth|big is the universe]?",
    "[What is|Which is] the [highest|longest|largest|smallest|deepest|oldest|fastest] "
    "[mountain|river|lake|country|animal|city|building|ocean|{n}][ in the world| in {x}|]?",
    "What happened [in {o} in {y}|in {y}|yesterday|in {c}|to {p}]?",
    "What [year|day] [did|was] [the war end|{c} founded|{p} born|the election|the wall fall]?",
    "[How do I|How to|Can you tell me how to] [make|cook|bake] [{f}|a {f}|{f} at home]?",
    "[Give me|I need|Do you have] a recipe for {f}[.|?|]",
    "Is [{f}|{n}|coffee|sugar|milk|running] [good|bad|healthy] for [me|you|children|my heart]?",
    "[Write|Show me] [a program|code|a function|a script|a class] [that sorts|for|"
    "to sort|in] [a list|"
    "{t}|{n}s|numbers][.|]",
    "[What should I|What shall I] [eat|wear|read|buy|watch|cook|do] [today|tonight|tomorrow|now]?",
    "[What is|What's] the [latest|newest] [news|version of {t}|film|{n}][ in {o}|]?",
    "[Recommend|Suggest] [a book|a film|a game|a {n}|a restaurant in {c}|some music][.|]",
    "[What is|What's] [your|the] [favourite|favorite|best] [colour|food|film|book|"
    "song|{n}|animal]?",
    "[Should|Can] I [buy|sell|eat|drink] [{n}|{f}|bitcoin|stocks]?",
    "[Fix|Repair] my [{n}|code|computer|car][.|]",
    "[Which|What] [language|currency|religion|food] do they [speak|use|have|eat] in [{c}|{x}]?",
    "What is {w}?",
    "What does {w} mean?",
    "Where is [{c}|{x}|{w}|mount {w}|the {n}]?",
    "Where [can|do] I [find|buy|get] [a {n}|{f}|{w}]?",
    "When [is|was] [{w}|the {w} war|Easter|the next election|{p} born|the last {n}]?",
    "Do you know [{p} {w}|{c}|{w}|who {p} is|where {c} is|much about {t}]?",
    "Which [{n}|{f}|car|phone|computer] is [best|better|cheapest|the best]?",
    "What are the [causes|effects|rules|symptoms|advantages|types|parts] of {t}?",
    "[Solve|Help me with] my [homework|exam|essay|{t} homework][.|]",
]
