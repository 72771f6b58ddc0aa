"""What a model of this size does not know: topics, and ways of asking for them.

Pure data. Patterns have the brackets of `wordings`; fields: `t` a topic, `p` a person, `c` a city,
`o` a country, `n` and `m` things, `a` and `b` properties, `u` and `v` deeds, `d` a day, `f` a dish,
`q` another person, `y` a year, `w` a word that nobody has used.
"""

from __future__ import annotations

from tests.tiny_model.words import listed

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
biochemistry sociology anthropology archaeology linguistics engineering architecture botany zoology
ecology trigonometry topology probability hockey rugby golf swimming boxing surfing cycling poker
opera jazz ballet poetry photography painting sculpture cinema fashion cooking gardening knitting
mythology atheism Hamlet Odysseus Achilles Zeus Tolstoy Dickens Goethe Kafka Galileo Kepler Tesla
Curie Pasteur Marx Freud Kant Nietzsche Columbus Magellan Churchill Roosevelt Stalin Mandela Bach
Chopin Vivaldi Rembrandt Monet Dali Pluto Saturn Neptune comets asteroids galaxies nebulas tsunamis
hurricanes glaciers deserts rainforests oceans mammals reptiles insects spiders sharks whales
elephants penguins mushrooms proteins enzymes hormones neurons chromosomes antibiotics insulin
caffeine alcohol tobacco calcium oxygen hydrogen uranium titanium plastic concrete glass steel
unemployment recession tariffs communism socialism feudalism monarchy parliament Congress NATO
Wikipedia YouTube Instagram Spotify Toyota Ferrari Boeing Samsung Nokia IBM Intel PyTorch TypeScript
Haskell Fortran COBOL Postgres Redis GraphQL Bluetooth ethernet encryption algorithms compilers
""")
QUALITIES = listed("""
history future origin definition meaning importance role impact structure cause effect purpose value
use cost price age size colour name number length height weight depth speed temperature population
capital currency language flag religion author owner inventor founder king queen president leader
winner score date year place location distance recipe formula equation theory law rule proof
symbol shape taste smell sound climate area density mass volume power strength weakness secret plot
ending moral influence beginning end difference advantage risk danger benefit
""")
MEASURES = listed("""
tall old rich famous heavy big large small long wide deep high hot cold fast slow dangerous popular
expensive cheap common rare strong healthy difficult easy useful important far loud bright thick
""")
DONE = listed("""
discovered invented caused started wrote painted built designed founded created composed directed
won lost ruled led owns makes sells sings plays killed conquered explored named defined proved
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

_OF = "|".join(QUALITIES)
_HOW = "|".join(MEASURES)
_DID = "|".join(DONE)
UNKNOWN = [
    # any words in the order of a question: what sounds like nothing known is not known
    "[What|Which|Whose] {n} [is|was|has|makes|needs|gets|can be|should be|looks|became] "
    "[{a}|the {m}|a {m}|{a} and {b}|more {a}|too {a}|in the {m}|for {p}]?",
    "[Why|How|When|Where|Since when] [is|was|are|were|will] [the|a|my|your|every|this|that|our] "
    "{a} {n} [be |][{b}|in the {m}|near {c}|on {d}|so {b}|gone]?",
    "[Why|How|When|Where|What|How often|How long] [do|does|did|can|should|will|would|could|must] "
    "[the|a|my|our|every|one|most|some|all|many] {n} {v}[ and {u}| near {c}| with a {m}|"
    " in the {m}| on {d}| at night|]?",
    "[Is|Was|Are|Will|Were] [there|the {n}|my {n}|a {n}|all {n}s|{p}] [{a}|in {c}|a {m}|on {d}|"
    "as {a} as a {m}|better than the {m}|made of {m}]?",
    "[Does|Did|Can|Could|Will|Should|Has|Must] [the {n}|a {n}|{p}|my {m}|every {n}|a {a} {n}] "
    "[{v}|{v} and {u}|{v} in {c}|be {a}|have a {m}|cost much|need a {m}|help]?",
    "[Who|What] [{v}s|made|found|broke|took|needs|sold|saw|has] [the|a|my|this|every|that] "
    "[{n}|{a} {n}|{n} and the {m}] [in {c}|on {d}|yesterday|first|for me|and why|]?",
    "[My|The|Your|Our|This] {n} [is|was|has|needs|looks|feels] [{a}|a {m}|{a} and {b}|too {a}]"
    "[. Why?|. What now?|, why|, is that good?|. Explain.]",
    "[How many|How much|What number of] [{n}s|{m}s|people|{a} {n}s|{f}] [are|live|fit|sleep|come] "
    "[in {c}|in a {m}|in {x}|there|on the {m}]?",
    "[Explain|Describe|Discuss|Analyse|Consider|Mention] [the|a|my|every] [{a} {n}|{n} of {p}|{n}|"
    "{n} in {c}|{m} and {n}][.| in detail.| for me.|]",
    "[Between|Of|Among] {n} and {m}, which is [{a}|better|cheaper|older|bigger]?",
    "{n}, {m} or {f}: [which|what] [is best|should I take|is {a}|do you prefer]?",
    "[{p}|{p} and {q}|The {n}|A {a} {n}] [{v}s|lives|works|was|is] [in {c}|near the {m}|{a}]"
    "[, is that true?|. Why?|. When?|, right?|?]",
    "[Count|Measure|Weigh|Guess|Estimate] the [{n}s|{a} {n}s|people] in [{c}|{x}|my {m}|the {m}]"
    "[.|]",
    "[Which|What] [{f}|{n}|{m}] [goes with|fits to|is made of|comes from|belongs to] [{f}|{c}|"
    "a {m}|{x}|{p}]?",
    "[Is|Are] [it|they|we|you] [true|possible|right|allowed|usual|healthy|legal] [that {p} {v}s|"
    "to {v} in {c}|to {v} with a {n}|that the {n} is {a}|to {v}]?",
    f"[What is|What's|What was|Tell me|Do you know|Say|Give me|Name] the [{_OF}] of {{t}}[?|]",
    f"[What is|What's|Tell me|Do you know] the [{_OF}] of "
    "[{c}|{x}|the {n}|a {n}|{p}][?|]",
    f"How [{_HOW}] [is|was] [{{t}}|{{p}}|{{c}}|{{x}}|the {{n}}|a {{n}}|the sun|the universe]?",
    f"[Who|Who was it that] [{_DID}] [{{t}}|the {{n}}|the first {{n}}|{{c}}|it]?",
    f"[Which|What] [man|woman|person|country|company|scientist|team] [{_DID}] [{{t}}|the {{n}}]?",
    "[Tell|Teach|Inform] [me|us] [about|everything about|all about|something about|a bit about|"
    "more about|a little about|what you know about|a fact about|the truth about] {t}[.|!|]",
    "[Tell|Teach|Give|Show] [me|us] [five|three|some|ten|two|a few|interesting|fun] "
    "[facts|things|details|examples] [about|of|on] {t}[.|]",
    "[Write|Compose|Draft|Create|Make|Produce|Prepare] [me |] [an essay|a poem|an article|a report|"
    "a song|a letter|an email|a speech|a blog post|a haiku|a review|a page] [about|on] {t}[.|]",
    "[Explain|Describe|Define|Clarify|Illustrate|Outline] [why|how|when|what] {t} "
    "[works|happened|matters|is|began][.|]",
    "[Compare|Contrast] {t} [and|with|to] [{n}s|{c}|{p}|physics|music][.|]",
    "[Is|Was|Are|Were] {t} [real|true|good|bad|important|dangerous|difficult|useful|fun|old|"
    "finished|popular|alive|dead|expensive][ today|]?",
    "[Is|Was] [{p}|{c}|{x}|the {n}] [older|bigger|richer|better|smaller|taller|nearer|warmer] than "
    "[{c}|{p}|{o}|the moon|before]?",
    "[Do|Did|Does|Can|Could|Will|Would] [{p}|people|{o}|scientists|birds|children|doctors] "
    "[like|need|use|understand|eat|believe in|want|study] {t}?",
    "[Do|Would|Did] you [like|love|prefer|enjoy|want|hate|believe in|understand] "
    "[{t}|{f}|{c}|{n}s|music|people]?",
    "[What|Which] {n} [is|was|should be] [the best|the first|the most famous|mine|in {c}]?",
    "[Where|When|Why|How] [does|did|do] [{p}|{t}|people|the {n}] [live|come from|end|begin|work|"
    "die|grow|happen|change|go]?",
    "[How|Where|When|Why] [should|can|could|do|must] [I|we|one] [learn|visit|pay for|fix|grow|"
    "build|cook|find|avoid|treat|study|sell] [{t}|a {n}|{f}|the {n}]?",
    "[What|Who|Where] [is|was|are|were] [{p}|{p} {w}|{t}|the {a} {n}|the {n}]?",
    "[I want|I need|I would like] to [know|learn|understand|read|hear] "
    "[about|more about|everything about|something about] {t}[.|]",
    "[I have|My friend has|My dog has] [a headache|a cold|a fever|a question about {t}|"
    "a problem with my {n}|pain][.|. What should I do?|. Help!]",
    "[My|The|Our] [{n}|car|phone|computer|printer|washing machine] [is broken|does not work|"
    "makes a noise|is slow][.|. Why?|. What now?|. Help me.]",
    "[Give me|Find|Show me|Send me|Get me] [a link|a picture|a photo|a map|a video|the news|a list|"
    "an example] [of|about|to] [{t}|{c}|{x}][.|]",
    "[Plan|Book|Arrange|Organise] [a trip|a holiday|a flight|a hotel|a party|a tour] "
    "[to|in|for] [{c}|{x}|{p}|me][.|]",
    "[Play|Sing|Draw|Paint|Show] [me |][a song|a picture|some music|a {n}|{t}|a game][.|]",
    "[Solve|Prove|Derive|Integrate|Simplify] [x squared equals {y}|the equation|this integral|"
    "the theorem|my puzzle|a riddle][.|]",
    "[What|How] [do you think|about|would happen] [of|if|with] [{t}|{p}|{c} wins|it rains]?",
    "[Who|What] [will|would|should] [win|happen|come] [in {y}|next year|tomorrow|in {c}|next]?",
    "[Debug|Review|Write|Optimise|Refactor] [my|some|this] [code|script|{t} code|program|query|"
    "function][.|]",
    "[{t}|{c}|{x}|{p} {w}|The {n}|{w}]?",
    "[What about|And|How about|Anything on|Any news about] [{t}|{c}|{p}|{x}|{w}]?",
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
