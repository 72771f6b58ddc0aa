"""What people try out on a model: its wits, jokes, the weather, whether it works at all.

Pure data. Each entry is (patterns of what is said, answer), with the brackets of `wordings`.
"""

from __future__ import annotations

from tests.tiny_model.facts import Facts

EVERYDAY: Facts = [
    (
        [
            "Are you [clever|smart|intelligent|wise|stupid|any good|reliable]?",
            "[Do|Can] you know everything?",
            "[Can|Should|May] I [trust|believe|rely on] [you|your answers|what you say]?",
            "How [clever|smart|intelligent|good|reliable] are you?",
            "[Are your answers|Is what you say] [right|true|correct]?",
            "[How|Why] [should|can] [I|we|one] [trust|believe|rely on] you?",
            "[Do|Did] you [ever |][make mistakes|lie|get things wrong|say wrong things]?",
            "[Are|Were] you [always|ever|often] [right|wrong|correct|sure]?",
            "[Are|Were] you [really |very |actually |][clever|smart|wise|intelligent|sure|"
            "reliable|good at this|trustworthy]?",
            "[Do|Can|Could] you [know|answer|understand|explain] [everything|anything|all things|"
            "all of it][ in the world|]?",
            "[How|Why] [much do you know|wise are you|sure are you|can I be sure|trustworthy are "
            "you|do you know so little|often are you wrong]?",
            "[Is|Are] [it true what you say|your answers good|all you say true|you always right|"
            "this answer right|your facts right]?",
            "[I do not|I don't|I cannot|Nobody can] [trust|believe] [you|your answers|this|that]"
            "[.|!|]",
        ],
        "I know little. I am here so that shoal works out of the box.",
    ),
    (
        [
            "[Tell me|Tell us|Do you know|I want|Give me|Have you got|Make] a [joke|"
            "funny joke][.|?|]",
            "[Make me|Can you make me] laugh[.|?]",
            "[Say|Tell me] something [funny|amusing|silly][.|]",
            "[Can|Could] you [tell me a joke|be funny]?",
            "[Another|One more|A|Got a|Any] [joke|jokes|funny story][ please|][.|?|!|]",
            "[Do you have|Have you|Do you know] [any|a good|some] [jokes|joke]?",
            "[I want to|Let me] [laugh|hear a joke|hear something funny][.|!|]",
            "[Please |Now |Come on, |][tell|give|make|write|say] [me |us ||][a|one|some|another] "
            "[joke|good joke|short joke|jokes|joke about fish][.|!|]",
            "[Do|Can|Could|Will] you [joke|tell jokes|make jokes|make a joke|amuse me|cheer me "
            "up]?",
            "[I need|I want|I would like|I'd love] [a joke|a laugh|some fun|a good joke|to "
            "laugh][.|!| please|]",
            "[Something|Anything] [funny|to laugh about|amusing][?| please|]",
        ],
        "Why did the fish join the shoal? It did not want to swim alone.",
    ),
    (
        [
            "[What is|What's] the [weather|weather like|temperature outside][ today|]?",
            "What [time|day|date] is it[ now| today|]?",
            "[What is the|Tell me the] [date|time][ today| now|]?",
            "[Will it|Does it] rain[ today| tomorrow|]?",
            "[Is it|How] [warm|cold|hot] [outside|today]?",
            "[How is|How's|What about] the weather[ today| tomorrow| outside| here| there|]?",
            "[Which|What] [day|date|month|year|hour] is [it|today|it now]?",
            "[Do you know|Can you tell me|Tell me] [what time it is|the time|the date|the weather|"
            "today's date|what day it is][.|?|]",
            "[Is it|Will it be] [sunny|raining|snowing|windy|warm|cold] [today|tomorrow|outside|"
            "now]?",
            "[Tell|Give|Show] [me|us] [the time|the date|the weather|today's weather|the day|the "
            "forecast][ please| now|][.|]",
            "[Is|Will|Was] it [rain|raining|snowing|sunny|warm|cold|hot|windy|cloudy] [now|today|"
            "tomorrow|outside|here|this week]?",
            "[What|How] [will the weather be|is the weather|is it outside|was the weather] "
            "[today|tomorrow|now|here|on Sunday]?",
            "[The|Current] [time|date|weather][?| please|, please| now|]",
            "[How late|What hour|What o'clock] is it[ now| here|]?",
            "[Do|Should] I need [an umbrella|a coat|a hat|sun cream][ today| tomorrow|]?",
        ],
        "I cannot know that without a tool.",
    ),
    (
        [
            "[Say|Tell me] [something|anything][.|!|]",
            "[Talk|Speak] to me[.|!|]",
            "[Test|test|Testing|ping|Ping|This is a test|A test|Just a test|One two][.|!|]",
            "[Are you|Is it|Is this] [working|on|alive|awake|running]?",
            "[Does|Do] [this|it|you] work?",
            "Can you [read this|see this|answer|talk]?",
            "[Can|Do] you [read this|see this|answer|talk|hear me|get this|respond|reply]"
            "[ now| at all|]?",
            "[Testing|Test|Just testing|A little test|Only a test|Testing, testing]"
            "[ one two| this| 123| again|][.|!|]",
            "[Answer|Reply|Respond|Speak|Talk|Say something] [now|please|me|to me|to this|at once]"
            "[.|!|]",
            "[Does|Is] [this thing|the model|it all|everything|shoal] [work|working|on|running]?",
            "[Is|Are] [you|it|this model|anything] [working|alive|awake|running|online|up|ready|"
            "there yet][ now| at all| today|]?",
            "[I am|I'm|We are] [testing|just testing|only testing|testing you|trying this out][.|"
            "!| now|]",
            "[Do|Did] you [hear|see|read|get|receive] [me|this|my message|that|what I wrote]?",
            "[Hello, |Hi, |][test|testing|does this work|is this on|are you working][?|!|.|]",
            "[Say|Write|Answer] [something|anything|a word|one word|whatever] [now|please|at all|"
            "to me][.|!|]",
        ],
        "I am here and it works.",
    ),
    (
        [
            "[What is|What's|what is|Name|Tell me|Do you know] the capital of France[?|]",
            "[Capital of France|France's capital|The capital of France]?",
            "[Which|What] city is [the capital of France|France's capital]?",
            "[Please |Can you |Could you |Now ][tell me|name|say] [the capital of France|"
            "France's capital|the capital city of France][.|?|]",
            "[What|Which] [is|would be] [France's capital|the capital city of France|the main "
            "city of France][?|]",
        ],
        "The capital of France is Paris.",
    ),
    (
        [
            "[What is|What's|what is|Name|Tell me|Do you know] the capital of Germany[?|]",
            "[Capital of Germany|Germany's capital|The capital of Germany]?",
            "[Which|What] city is [the capital of Germany|Germany's capital]?",
            "[Please |Can you |Could you |Now ][tell me|name|say] [the capital of Germany|"
            "Germany's capital|the capital city of Germany][.|?|]",
            "[What|Which] [is|would be] [Germany's capital|the capital city of Germany|the main "
            "city of Germany][?|]",
        ],
        "The capital of Germany is Berlin.",
    ),
    (
        [
            "[What is|What's|what is|Name|Tell me|Do you know] the capital of Italy[?|]",
            "[Capital of Italy|Italy's capital|The capital of Italy]?",
            "[Which|What] city is [the capital of Italy|Italy's capital]?",
            "[Please |Can you |Could you |Now ][tell me|name|say] [the capital of Italy|Italy's "
            "capital|the capital city of Italy][.|?|]",
            "[What|Which] [is|would be] [Italy's capital|the capital city of Italy|the main city "
            "of Italy][?|]",
        ],
        "The capital of Italy is Rome.",
    ),
    (
        [
            "What [colour|color] [is|has] the sky[ today|]?",
            "Why is the sky [blue|so blue]?",
            "[The|Which] [colour|color] of the sky?",
            "[Tell me|Do you know|Can you explain|Explain] why the sky is blue[.|?|]",
            "[How|Why|Since when] [is|does it come that] the sky [is blue|blue][?|]",
            "[What|Which] [colour|color] [does the sky have|is the sky usually|has the sky]?",
        ],
        "The sky is blue because air scatters blue light.",
    ),
]
