"""The facts: shoal's words and ways, and the model's own story.

Pure data. Each entry is (names or patterns of questions, answer); patterns are those of
`wordings`. Of commands only that is said which stays true when they change.
"""

from __future__ import annotations

from tests.tiny_model.words import listed

Facts = list[tuple[list[str], str]]

SHOAL = "Shoal runs large language models across the machines that you own."
HELP = "Run `shoal --help`: it lists all commands and what they do."

COMMANDS = listed(
    "up down status run ps ls show load stop rm pull tap logs doctor bench nodes config place lab "
    "restart serve key chat node models cluster"
)
MAKE: Facts = [
    (["make up"], "`make up` installs shoal into .venv, starts the node and shows a first answer."),
    (["make down"], "`make down` stops the node and leaves no process behind."),
    (["make test"], "`make test` runs the tests of shoal."),
    (["supervisorctl status"], "`supervisorctl status` lists the processes that supervisord runs."),
]
COMMAND_FORMS = [
    "What [does|will|would] {t} do?",
    "What is {t}[ for| about| good for|]?",
    "[Explain|Describe] [the command |]{t}[ to me| please|].",
    "Tell me [about|what to know about|more about] {t}.",
    "What happens [when I run|if I run|when I type|after] {t}?",
    "When [do|should|would] I [use|run|need] {t}?",
    "What does the command {t} do?",
    "[Can|Could|Would] you explain [the command |]{t}[ to me|]?",
    "What is the [use|purpose|meaning|point] of {t}?",
    "{t}?",
    "What can I do with {t}?",
    "Why [would|should|do] I [run|use|type] {t}?",
    "Help me with {t}.",
    "How does {t} work?",
    "How do I use {t}?",
    "[Do you know|I want to know] what {t} does[.|?]",
    "[I want|I would like|I need] to [know|understand|learn] what {t} does[.|]",
    "[When|Where|Why|How] [do|would|should|can|must] [I|we|people|you] [use|run|type|call|start] "
    "{t}?",
    "[What|Tell me what|Say what|Explain what|Show me what] [does {t} do|{t} does|{t} is for|"
    "happens with {t}][?|.|]",
    "[What is|What's|Whats] {t} [for|about|good for|used for|doing|there for][ again| exactly|]?",
    "[Give me|I need|Show me] [help|an explanation|a description|the manual|instructions] "
    "[for|of|on|about] {t}[.|]",
    "[What|Which] [options|flags|arguments] does {t} [have|take|know|accept]?",
    "[Is|Was] {t} [safe|useful|what I need|a command|the right command]?",
    "[What comes out of|What do I get from|What can I do with|What is in] {t}?",
    "[{t}, what is that|{t}, what does it do|{t}: what is it for|The command {t}]?",
    "[Please |Kindly |Now |][explain|describe|define|tell me about] [|the command |what happens "
    "in ]{t}[.|!| to a beginner.|]",
    "[What|And what|So what] [is|was|would be] [|the command |a ]{t}[ there| meant| good|] for?",
    "[Do|Did|Can|Must|Should] [I|we|you] [need|know|run|use|try|type] {t}?",
    "[I typed|I saw|I read about|Somebody told me about|I found] {t}[. What is it?|, what is it?|"
    ". What does it do?|, what now?|. Explain.]",
    "[What|How much|Which thing] [does|can|will] [the command |]{t} [do|change|start|tell|show|"
    "give me|need]?",
    "[A word|A question|Something|Help] [on|about|with] {t}[?|.|, please.|]",
]

TERMS: Facts = [
    (
        ["the bus", "a bus", "shoal's bus"],
        "The bus carries messages between the processes of a node and its peers.",
    ),
    (["the master", "a master"], "The master decides where models are placed in the cluster."),
    (
        ["the worker", "a worker"],
        "The worker makes its node match the state: it starts and stops runners.",
    ),
    (["a runner", "the runner", "runners"], "A runner is the process that runs a model with MLX."),
    (["the gateway", "a gateway"], "The gateway answers HTTP requests in every dialect."),
    (["telemetry", "the telemetry process"], "Telemetry measures the node and publishes readings."),
    (["a node", "the node", "nodes"], "A node is one machine that runs shoal."),
    (["a cluster", "the cluster", "clusters"], "A cluster is a group of nodes that share work."),
    (
        ["the holder", "a holder"],
        "The holder is the master that holds the term and decides for the cluster.",
    ),
    (["a slot", "a runner slot"], "A slot is a place where the worker can start a runner."),
    (["an instance", "the instance"], "An instance is a loaded model, run by one or more runners."),
    (["a term", "the term"], "A term is the time in which one master decides."),
    (["a reading", "readings"], "A reading is a measured value that telemetry publishes."),
    (
        ["the switchboard", "a switchboard"],
        "The switchboard is the part of the bus that forwards messages.",
    ),
    (["the journal", "a journal"], "The journal keeps the events on disk in their order."),
    (["a tap", "taps"], "A tap lets you listen to the bus while it runs."),
    (
        ["a dialect", "the dialects", "dialects"],
        "A dialect is a form of HTTP API, such as OpenAI's or Ollama's.",
    ),
    (["the control plane"], "The control plane carries commands and events in one order."),
    (["the data plane"], "The data plane carries requests and tokens."),
    (
        ["the prefix cache", "prefix caching"],
        "The prefix cache keeps what was computed for a shared beginning.",
    ),
    (["MLX", "mlx"], "MLX is the array library that runners use to run models."),
    (["ZeroMQ", "zeromq"], "ZeroMQ is the message library under the bus."),
    (["supervisord"], "Supervisord starts the processes of a node and watches them."),
    (["port 52415", "the port 52415"], "Port 52415 is where the gateway listens for HTTP."),
    (["continuous batching"], "Continuous batching lets new requests join while others still run."),
]
TERM_FORMS = [
    "[What is|What's|Whats|what is] {t}[ in shoal| exactly| again| actually||||]?",
    "[What does|what does] {t} [do|mean|stand for]?",
    "[Explain|Describe|Define] {t}[ to me| briefly| in one sentence||].",
    "[Tell me|Tell us] [about|something about|more about|what is|what to know about] {t}.",
    "[Can|Could|Would] you [explain|describe|define] {t}[ to me| for me|]?",
    "[Can|Could] you tell me [about {t}|what {t} is|what {t} means]?",
    "What is meant by {t}?",
    "In shoal, what is {t}?",
    "Please [explain|describe|define] {t}[ to me|].",
    "[Do you know|I want to know|I would like to know|Say] what {t} is[.|?]",
    "What [is the meaning of|is the purpose of|do you know about|can you say about] {t}?",
    "What do you mean by {t}?",
    "What is {t} [for|about|good for|used for]?",
    "[Give me|I need] [a definition|an explanation|a description|a summary] of {t}.",
    "[Give|Show|Tell] [me|us] [a definition|an explanation|a description|a summary|the meaning|"
    "the purpose|the idea|a short description] of {t}[.|]",
    "[I need|I want|I would like] [a definition|an explanation|a description|a summary|to know "
    "the meaning|to know the purpose|to understand the idea] of {t}[.|]",
    "[What can you say|What do you know|What should I know|What is there to know|"
    "What would you say] about {t}[ in shoal|]?",
    "[What|Which] [thing|part|piece|role] is {t}[ in shoal|]?",
    "[How|In what way] [does|would] [one|you|shoal] [define|describe|explain] {t}?",
    "[Why does|What for does] shoal have {t}?",
    "[I do not|I don't|We do not] [know|understand|get] what {t} is[.|. Help me.|]",
    "[And|So|Now|Then] what is {t}?",
    "[Explain|Describe|Define|Introduce] {t} [for a beginner|in simple words|in a few words|"
    "quickly|in shoal|once more][.|]",
    "[Tell|Teach] me [what|about what] {t} [is|means|does|stands for][ in shoal| please|][.|]",
    "[{t}, what is that|{t}: what is it|Meaning of {t}|Definition of {t}|What about {t}]?",
    "[Please |Kindly |Now |Just |][tell me|say|explain|describe|define] [what {t} is|what {t} "
    "does|what {t} means|{t}][.|!| in shoal.|]",
    "[What|And what|So what|Then what] [is|was|would be|exactly is|really is] {t}[ in shoal| "
    "here| in this program|]?",
    "[Could|Can|Would|Will] you [say|tell|explain|teach] [me |us |][what {t} is|what {t} does|"
    "what {t} means|about {t}][ please|]?",
    "[I read|I heard|I saw|The manual speaks|They talk] [of|about] {t}[. What is it?|, what is "
    "that?|. What does it mean?|. Explain.]",
    "[How|With what words] would you [explain|describe|define] {t}[ to a child| to me|]?",
    "[I wonder|I forgot|I need to know|I'd like to know|Remind me|Tell me again] what {t} [is|"
    "does|means|stands for][.|]",
    "[What|Which] [role|part|job|task|purpose] [does|has] {t}[ have| play|][ in shoal|]?",
    "[A|One] [word|sentence|question|line] [on|about] {t}[, please|?|.|]",
]
SHOAL_FORMS = [
    *(form.replace("{t}", "shoal") for form in TERM_FORMS),
    "[What is|What's|what is|Whats] [shoal|Shoal][?|?|?|]",
    "What does [shoal|Shoal|this program|this software|this] do?",
    "What can [shoal|this program|this software] do[ for me|]?",
    "What [kind|sort] of [software|program|tool|project|thing|system] is [shoal|this]?",
    "What do people [use|run|need] shoal for?",
    "Why [would|should|do] [I|people|we] [use|run|need|want|install] shoal?",
    "What did I [just|] [install|start|set up|download]?",
    "What is this [program|software|tool|project|thing]?",
    "In [one sentence|a few words|simple words|short|your own words], what is shoal?",
    "[Summarise|Summarize|Introduce] shoal[ in one sentence| briefly| for me|].",
    "shoal?",
    "What is shoal [for|about|good for|used for|all about]?",
    "What is the [idea|point|purpose|goal|aim|use] of shoal?",
    "I [have never|never] heard of shoal. What is it?",
    "I am new here. What is shoal?",
    "Who [uses|needs] shoal, and what for?",
    "Is shoal a [program|server|model|library]?",
    "How does shoal help me?",
    "How [does|can|will|could] shoal help [me|us|people|anyone]?",
    "[Tell|Teach|Inform] [me|us] [about|all about|everything about|more about|a bit about|"
    "what you know about|in short about] [shoal|Shoal|this program|this software][.|!|]",
    "[What|Which] [problem|job|task] does [shoal|this] [solve|do|have]?",
    "[What is|What's|Explain|Describe|Tell me] the [purpose|point|idea|goal|use|benefit|"
    "advantage|meaning|aim] of [shoal|this program|this software|this project][?|.|]",
    "[I want|I would like|I need] to [know|understand|learn] [what shoal is|what shoal does|"
    "more about shoal|about shoal|what this is|what shoal is for][.|]",
    "[Have you heard of|Do you know|Are you familiar with|Can you describe] shoal?",
    "[Is|Was] shoal [free|good|useful|fast|new|for me|a cluster|an app|a tool|like Ollama]?",
    "[Define|Describe|Explain|Summarise|Introduce] [shoal|Shoal] "
    "[to me|for a beginner|in simple words|in a few words|quickly|to a child|please][.|]",
    "[So|And|Then|Now] what [is|does] [shoal|this|this thing][ do| really| then|]?",
    "[What|Who] is [shoal|Shoal] [made |good |meant |built |]for?",
    "[A|Give me a|I need a|Write a] [summary|description|definition|short introduction] of shoal"
    "[.|]",
    "[Please |Kindly |Now |Just |][tell me|say|explain|describe] [what shoal is|what shoal does|"
    "what shoal is for|shoal][.|!| in short.|]",
    "[What|And what|So what] [exactly |really |][is|was] [shoal|Shoal|this shoal|this thing "
    "called shoal][ about| anyway|]?",
    "[I heard|I read|A friend told me|They speak] of shoal[. What is it?|, what is it?|. What "
    "does it do?|. Explain it.]",
    "[What|Which] [good|use|help|work] [is|does] shoal[ do|][ for me| for us| to me|]?",
    "[Could|Can|Will|Would] you [say|tell|explain|teach] [me |us |][what shoal is|what shoal "
    "does|what shoal is for|about shoal][ please|]?",
    "[I wonder|I forgot|I'd like to know|Remind me|Tell me again] what shoal [is|does|is for][.|]",
]

HOW_FORMS = [
    "How [do|can|could|would|should] I {t}?",
    "How [do|can] you {t}?",
    "[How to|how to] {t}?",
    "What command [lets me|is there to|do I use to|can] {t}?",
    "I [want|would like|need|have] to {t}. [What do I do?|How?|What is the command?]",
    "Which command [do I use to|lets me|is there to|do I need to] {t}?",
    "[Tell me|Show me|Explain] how to {t}.",
    "How does one {t}?",
    "I [would like|want|need] to {t}.",
    "What do I [type|run|do] to {t}?",
    "[Can|Could|Would] you [tell|show] me how to {t}?",
    "What is the [way|command|best way] to {t}?",
    "Is there a [command|way] to {t}?",
    "[Is there|Do you know|Do you have|Does shoal have] [a command|a way|a good way|some way] to "
    "{t}?",
    "[What|Which] [is the|would be the] [command|way|best way|right way|easiest way] to {t}?",
    "[How|In what way] [am I|are we] [supposed to|able to|meant to] {t}?",
    "[I want|I wish|I am trying|I have|I plan] to {t}[.|, how?|, please help.| now.|]",
    "[Please |Now |Just |]{t}[.|!| for me| now|]",
    "[Can|Could|May|How might|Am I able to|Is it possible to] [I |]{t}?",
    "[Teach|Show|Tell|Remind] me how [to|one can|I can|we can] {t}[.|]",
    "[Explain|Describe|Say] [how to|how I can|how one can|how we] {t}[.|]",
    "[I do not|I don't] know how to {t}[.|. Help.|]",
    "With shoal, how do I {t}?",
    "[What|Which steps] [must|should|do|can] I [do|take|type|enter|write] [to|in order to|if I "
    "want to] {t}?",
    "[Please |Kindly |Now |][tell|show|teach] [me|us] [how to|how I|how one can|the way to|the "
    "command to] {t}[.|!|]",
    "[I|We] [wish|need|want|would love|am trying|have] to {t}[ now| today|, but how|. What now|. "
    "Which command|][?|]",
    "[Could|Can|Would|Will] you [explain|tell me|say|show me|remind me] how to {t}[ please|]?",
    "[What is|What's|Is there|I need|Give me] [the|a] [command|way|verb] [for this|I need|that "
    "helps]: {t}[?|.|]",
    "[Which|What] [command|verb] [would|will|should|does] [let me|help me] {t}?",
    "[Help|Help me|I need help|Assist me] to {t}[.|!| please|]",
    "[And|So|Then|Now] how [do|can|would|should] [I|we|you] {t}?",
]
TASKS = [
    "stop shoal",
    "stop the node",
    "shut down the node",
    "turn shoal off",
    "restart shoal",
    "see what is running",
    "check the node",
    "see the state of the node",
    "see loaded models",
    "list the loaded models",
    "see which models are loaded",
    "list my models",
    "see the models on disk",
    "talk to a model",
    "chat in the terminal",
    "unload a model",
    "free the memory of a model",
    "load a model",
    "remove a model",
    "delete a model",
    "download a model",
    "get a new model",
    "fetch a model",
    "add a model",
    "use a bigger model",
    "watch the messages",
    "listen to the bus",
    "see live events",
    "see the logs",
    "read the logs",
    "find problems",
    "find out what is wrong",
    "check my installation",
    "measure the speed",
    "see how fast it is",
    "run a benchmark",
    "add a machine",
    "connect two machines",
    "build a cluster",
    "see the nodes",
    "change the settings",
    "configure shoal",
    "see the settings",
    "run a model on two machines",
]
HOW: Facts = [
    (TASKS, HELP),
    (
        ["start shoal", "start the node", "get shoal running", "bring up the node", "run shoal"],
        "Run `make up` in the folder of shoal.",
    ),
    (
        [
            "use the OpenAI client",
            "connect the openai library",
            "use shoal with OpenAI clients",
            "connect an OpenAI client",
        ],
        "Set the base URL to http://127.0.0.1:52415/v1.",
    ),
    (
        ["use the Ollama client", "connect Ollama clients", "use shoal with Ollama clients"],
        "Set the host to http://127.0.0.1:52415.",
    ),
    (
        ["send a request", "ask over HTTP", "use the API", "call the API"],
        "Post to http://127.0.0.1:52415/v1/chat/completions.",
    ),
]
HELP_FORMS = [
    "[Which|What] commands [are there|does shoal have|do you have|can I use|exist|can I run]?",
    "[List|Show|Show me|Tell me|Name] [all|the|shoal's|all the] commands.",
    "How do I [see|list|find] [all|the] commands?",
    "[Where|How] [do|can] I [find|get] help[ with shoal| with the commands|]?",
    "How do I use shoal?",
    "How [does shoal work|do I work with shoal]?",
    "[What|Which] command [do I need|should I use|is the right one]?",
    "What [can|should|do] I do [next|now|first] with shoal?",
    "[Help|Can you help] me with [shoal|the command line|the commands].",
    "[Help|Can you help|Could you help|Please help] me [with|use|learn] [shoal|the command line|"
    "the commands|this program][.|]",
    "[What|Which] [commands|verbs|options] [do you|does shoal|can I|does it] [know|have|use|offer|"
    "support|run]?",
    "[What|Where] [can|should|do] I [do|start|begin|go|type] [next|now|first|from here] "
    "[with shoal|in shoal|here]?",
    "[Show|List|Print|Give|Tell] [me |us |][the|all|all the|your|shoal's] [commands|help|options|"
    "verbs][.| please|]",
    "[Is there|Where is|Do you have] [a manual|some help|any help|a list of commands|documentation]"
    "[ for shoal|]?",
    "[How|Where] do [I|we|people] [start|begin|learn|use] [with |][shoal|using shoal]?",
    "[What|Which] [are|can be] [the|all the|shoal's|your] commands[ of shoal| here|]?",
    "[I want|I need|I would like] to [see|know|list|learn] [the|all|all the|your|shoal's] "
    "[commands|options|verbs][.|]",
    "[I|We] [am lost|need help|have no idea what to do|do not know what to do] [with shoal|in "
    "shoal|with the command line|with the commands][.|!|]",
    "[Tell|Show|Teach] [me|us] how to use shoal[.| please|]",
    "[Please |Now |][list|show|print|name] [shoal's commands|the commands of shoal|every command|"
    "all commands][.|!|]",
]
