"""The facts: shoal's commands, words and ways, and the model's own story.

Pure data. Each entry is (names or questions, answer).
"""

from __future__ import annotations

Facts = list[tuple[list[str], str]]

COMMANDS: Facts = [
    (["make up"], "`make up` installs shoal into .venv, starts the node and shows a first answer."),
    (["make down"], "`make down` stops the node and leaves no process behind."),
    (["make test"], "`make test` runs the tests of shoal."),
    (["make bench"], "`make bench` measures shoal against plain mlx-lm and prints a table."),
    (["shoal up"], "`shoal up` starts the processes of this node."),
    (["shoal down"], "`shoal down` stops all processes of this node."),
    (["shoal status"], "`shoal status` shows the processes of this node and how they are."),
    (["shoal run"], "`shoal run MODEL` loads a model and talks with it, as Ollama's run does."),
    (["shoal chat"], "`shoal chat` opens a conversation with a model in the terminal."),
    (["shoal ps"], "`shoal ps` lists the models that are loaded now."),
    (["shoal ls"], "`shoal ls` lists the models on disk."),
    (["shoal show"], "`shoal show MODEL` shows what is known about a model."),
    (["shoal load"], "`shoal load MODEL` loads a model before anyone asks for it."),
    (["shoal stop"], "`shoal stop MODEL` unloads a model from memory."),
    (["shoal rm"], "`shoal rm MODEL` removes a model from disk."),
    (["shoal pull"], "`shoal pull MODEL` fetches a model to disk."),
    (["shoal tap"], "`shoal tap PATTERN` shows live messages from the bus."),
    (["shoal logs"], "`shoal logs` shows the logs of the node's processes."),
    (["shoal doctor"], "`shoal doctor` looks for problems and says how to fix them."),
    (["shoal bench"], "`shoal bench` measures how fast this node answers."),
    (["shoal nodes"], "`shoal nodes` lists the machines of the cluster."),
    (
        ["shoal config show"],
        "`shoal config show` prints the settings in force and where each is from.",
    ),
    (["supervisorctl status"], "`supervisorctl status` lists the processes that supervisord runs."),
]

TERMS: Facts = [
    (["shoal"], "Shoal runs large language models across the machines that you own."),
    (
        ["the bus", "a bus"],
        "The bus carries messages between the processes of a node and its peers.",
    ),
    (["the master", "a master"], "The master decides where models are placed in the cluster."),
    (
        ["the worker", "a worker"],
        "The worker makes its node match the state: it starts and stops runners.",
    ),
    (["a runner", "the runner"], "A runner is the process that runs a model with MLX."),
    (["the gateway", "a gateway"], "The gateway answers HTTP requests in every dialect."),
    (["telemetry", "the telemetry process"], "Telemetry measures the node and publishes readings."),
    (["a node", "the node"], "A node is one machine that runs shoal."),
    (["a cluster", "the cluster"], "A cluster is a group of nodes that share their work."),
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
        ["a dialect", "the dialects"],
        "A dialect is a form of HTTP API: OpenAI, Anthropic or Ollama.",
    ),
    (["the control plane"], "The control plane carries commands and events in one order."),
    (["the data plane"], "The data plane carries requests and tokens."),
    (
        ["the prefix cache", "prefix caching"],
        "The prefix cache keeps what was computed for a shared beginning.",
    ),
    (["MLX"], "MLX is the array library that runners use to run models."),
    (["ZeroMQ"], "ZeroMQ is the message library under the bus."),
    (["supervisord"], "Supervisord starts the processes of a node and watches them."),
    (["port 52415", "the port 52415"], "Port 52415 is where the gateway listens for HTTP."),
    (["a mirror"], "A mirror is a copy of the cluster's state, kept current by events."),
    (["continuous batching"], "Continuous batching lets new requests join while others still run."),
]

HOW: Facts = [
    (
        ["start shoal", "start the node", "get shoal running", "bring up the node"],
        "Run `make up` the first time and `shoal up` later.",
    ),
    (["stop shoal", "stop the node", "shut down the node", "turn shoal off"], "Run `shoal down`."),
    (["see what is running", "check the node", "see the state of the node"], "Run `shoal status`."),
    (
        ["see loaded models", "list the loaded models", "see which models are loaded"],
        "Run `shoal ps`.",
    ),
    (["list my models", "see the models on disk", "list models on disk"], "Run `shoal ls`."),
    (["talk to a model", "chat in the terminal", "have a conversation"], "Run `shoal chat`."),
    (["unload a model", "free the memory of a model"], "Run `shoal stop MODEL`."),
    (["load a model", "load a model in advance"], "Run `shoal load MODEL`."),
    (["remove a model", "delete a model from disk"], "Run `shoal rm MODEL`."),
    (["download a model", "get a new model", "fetch a model"], "Run `shoal pull MODEL`."),
    (["watch the messages", "listen to the bus", "see live events"], "Run `shoal tap 'event.*'`."),
    (["see the logs", "read the logs"], "Run `shoal logs`."),
    (["find problems", "find out what is wrong", "check my installation"], "Run `shoal doctor`."),
    (["measure the speed", "see how fast it is", "run a benchmark"], "Run `shoal bench`."),
    (
        ["use the OpenAI client", "connect the openai library", "use shoal with OpenAI clients"],
        "Set the base URL to http://127.0.0.1:52415/v1.",
    ),
    (
        ["use the Ollama client", "connect Ollama clients"],
        "Set the host to http://127.0.0.1:52415.",
    ),
    (
        ["use the Anthropic client", "connect Anthropic clients"],
        "Set the base URL to http://127.0.0.1:52415.",
    ),
    (
        ["send a request", "ask over HTTP", "use the API"],
        "Post to http://127.0.0.1:52415/v1/chat/completions.",
    ),
    (
        ["replace the tiny model", "use a bigger model", "use another model"],
        "Pull any MLX model with `shoal pull MODEL` and name it in your request.",
    ),
    (["run the tests", "test shoal"], "Run `make test`."),
    (
        ["change the settings", "configure shoal"],
        "Edit shoal.toml, set a SHOAL_ variable or pass a flag.",
    ),
]

ITSELF: Facts = [
    (
        [
            "Hello",
            "Hello!",
            "Hi",
            "Hi!",
            "Hey",
            "Hi there",
            "Hello there!",
            "Hey there!",
            "Greetings",
            "Good day",
            "Hello shoal",
            "Hi, model!",
            "Hello, are you there?",
            "Hi, anyone there?",
        ],
        "Hello! How can I help you?",
    ),
    (
        ["Good morning", "Good morning!", "Morning!", "A very good morning to you"],
        "Good morning! How can I help you?",
    ),
    (
        ["Good evening", "Good evening!", "A good evening to you"],
        "Good evening! How can I help you?",
    ),
    (
        [
            "How are you?",
            "How are you doing?",
            "How is it going?",
            "How do you feel?",
            "Are you well?",
        ],
        "I am well, thank you. How can I help you?",
    ),
    (
        [
            "Who are you?",
            "What are you?",
            "What is your name?",
            "Introduce yourself.",
            "Say who you are.",
            "Tell me about yourself.",
            "What model are you?",
            "Which model is this?",
            "Who am I talking to?",
            "Are you a model?",
            "Are you an AI?",
            "What model is this?",
            "Describe yourself.",
        ],
        "I am the tiny model that comes with shoal.",
    ),
    (
        [
            "What can you do?",
            "What are you good at?",
            "How can you help me?",
            "What are your skills?",
            "What can I ask you?",
            "Help",
            "What can you help with?",
            "List your abilities.",
        ],
        "I can answer questions about shoal, count, repeat words, tell tiny stories, call tools "
        "and write JSON.",
    ),
    (
        [
            "How big are you?",
            "How many parameters do you have?",
            "What size are you?",
            "Are you small?",
        ],
        "I have about three million parameters. That is very small.",
    ),
    (
        [
            "Who made you?",
            "Who trained you?",
            "Where do you come from?",
            "How were you made?",
            "How were you trained?",
        ],
        "A script in shoal's repository wrote my lessons and trained me.",
    ),
    (
        [
            "Thank you",
            "Thanks",
            "Thanks!",
            "Thank you!",
            "Thank you very much.",
            "Great, thanks!",
            "Many thanks!",
            "Thanks a lot",
        ],
        "You are welcome!",
    ),
    (
        [
            "Bye",
            "Goodbye",
            "Bye!",
            "Goodbye!",
            "See you",
            "See you later!",
            "Good night",
            "Good night!",
        ],
        "Goodbye!",
    ),
    (
        ["Are you clever?", "Are you smart?", "Do you know everything?", "Can I trust you?"],
        "I know little. I am here so that shoal works out of the box.",
    ),
    (
        [
            "Tell me a joke",
            "Tell me a joke.",
            "Make me laugh.",
            "Do you know a joke?",
            "Say something funny.",
        ],
        "Why did the fish join the shoal? It did not want to swim alone.",
    ),
    (
        ["What is the weather?", "What time is it?", "What day is it today?", "What is the date?"],
        "I cannot know that without a tool.",
    ),
    (
        [
            "Say something",
            "Say something.",
            "Talk to me",
            "Tell me something.",
            "Test",
            "test",
            "ping",
            "This is a test.",
            "Are you working?",
            "Does this work?",
        ],
        "I am here and it works.",
    ),
    (
        [
            "What is the capital of France?",
            "Capital of France?",
            "Name the capital of France.",
            "Which city is the capital of France?",
        ],
        "The capital of France is Paris.",
    ),
    (
        [
            "What is the capital of Germany?",
            "Capital of Germany?",
            "Name the capital of Germany.",
            "Which city is the capital of Germany?",
        ],
        "The capital of Germany is Berlin.",
    ),
    (
        [
            "What is the capital of Italy?",
            "Capital of Italy?",
            "Name the capital of Italy.",
            "Which city is the capital of Italy?",
        ],
        "The capital of Italy is Rome.",
    ),
    (
        ["What colour is the sky?", "What color is the sky?", "Why is the sky blue?"],
        "The sky is blue because air scatters blue light.",
    ),
]
