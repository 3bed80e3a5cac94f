"""Short answers about diffusion, drafting, this project and its flags. Held out by the pair of fact and phrasing."""

from __future__ import annotations

from random import Random

from training.data.base import Sample, polite, user

WHAT = (
    "What is {x}?", "What does {x} mean?", "Explain {x}.", "Tell me about {x}.", "Can you explain {x}?", "What's {x}?",
    "Define {x}.", "Please explain {x} briefly.", "I want to know what {x} is.", "Describe {x}.",
    "What do you know about {x}?",
    "Give me a short answer: what is {x}?",
)  # fmt: skip
FLAG = (
    "What does {x} do?", "What is the flag {x} for?", "What does the flag {x} mean?", "Explain the flag {x}.",
    "What is {x}?", "Tell me about {x}.", "What does the option {x} do?", "When do I use {x}?", "Explain {x}.",
    "What is the meaning of {x}?", "How do I use {x}?", "Describe the option {x}.",
)  # fmt: skip

CONCEPTS = {
    "block diffusion": "In block diffusion a model fills a whole block of masked tokens in a few passes.",
    "a diffusion language model": "It is a model that writes text by filling in masked tokens, many at a time.",
    "speculative decoding": "A cheap draft guesses several tokens, and the model checks all of them in one pass.",
    "a draft": "A draft is a guess of the next tokens that the model has not checked yet.",
    "draft acceptance": "It is the share of drafted tokens that the model accepts.",
    "greedy decoding": "Greedy decoding always takes the most probable token.",
    "a mask token": "A mask token stands for a place that the model has to fill in.",
    "the threshold in block diffusion": "A masked token is fixed when its probability is above the threshold.",
    "a token": "A token is a piece of text, often a part of a word.",
    "a tokenizer": "A tokenizer cuts text into tokens and gives each a number.",
    "a mixture of experts": "It has many small networks, and a router picks a few of them for each token.",
    "a router": "A router decides which experts a token is sent to.",
    "a KV cache": "It keeps the keys and values of old tokens, so that they are not computed again.",
    "quantization": "Quantization stores weights with fewer bits, so that a model needs less memory.",
    "GGUF": "GGUF is the file format of llama.cpp for models.",
    "llama.cpp": "llama.cpp is a program that runs language models on many kinds of machines.",
    "attention": "Attention lets a token look at other tokens and take what it needs.",
    "a context window": "It is the number of tokens that a model can see at once.",
    "temperature": "Temperature sets how freely tokens are chosen; 0 is greedy.",
    "lossless drafting": "Lossless drafting gives the same text as plain decoding.",
    "a gated delta net": "It is a layer that keeps a fixed size memory instead of all old tokens.",
    "the preview pass": "The preview pass reads a block in both directions and writes nothing to the cache.",
    "draft-self": "With draft-self the model drafts with its own blocks and then checks the draft.",
    "rollback": "Rollback sets the memory back to the last accepted token.",
    "a chat template": "A chat template turns messages into the text that the model reads.",
    "pyclover": "pyclover is a Python package that runs Clover models on one machine.",
    "Clover": "Clover is a language model that can also write in blocks.",
    "clover-run": "clover-run is the command line program of pyclover.",
    "clover-run generate": "It generates text from a prompt.",
    "clover-run inspect": "It says what a model file is and what it can do.",
    "clover-run doctor": "It checks whether the installation is sound, and how fast it is.",
    "clover-run tool": "It runs the programs of llama.cpp that come with pyclover.",
    "a tool call": "In a tool call the model asks a program to run a function for it.",
    "JSON": "JSON is a simple text format for data with names and values.",
    "a GPU": "A GPU is a chip that does many calculations at the same time.",
    "a CPU": "A CPU is the main processor of a computer.",
    "Python": "Python is a programming language that is easy to read.",
    "a language model": "A language model predicts the next pieces of a text.",
    "perplexity": "Perplexity says how surprised a model is by a text; lower is better.",
    "a stop string": "Generation ends where a stop string comes up.",
}
FLAGS = {
    "-m": "-m names the model file.",
    "-p": "-p gives the prompt.",
    "-f": "-f reads the prompt from a file.",
    "-n": "-n sets how many tokens are generated at most.",
    "-c": "-c sets the size of the context in tokens.",
    "-t": "-t sets the number of threads.",
    "-b": "-b sets the batch size.",
    "-r": "-r ends the text where a given text comes up.",
    "-q": "-q prints the text alone.",
    "-ngl": "-ngl sets how many layers go to the GPU.",
    "--temp": "--temp sets the temperature; --temp 0 is greedy.",
    "--top-k": "--top-k keeps only the k most probable tokens.",
    "--top-p": "--top-p keeps the most probable tokens up to a total probability of p.",
    "--json": "--json prints one JSON object.",
    "--spec-type draft-self": "It lets the model draft with its own blocks.",
    "--spec-draft-n-max": "It sets how many tokens a draft has at most, from 1 to 31.",
    "--spec-accept-ratio": "It relaxes which drafts are accepted, so the text can change.",
}
# Questions with their own wordings.
OWN = (
    (("Who are you?", "What are you?", "What is your name?", "Tell me about yourself.", "Who am I talking to?",
      "Which model are you?", "Introduce yourself.", "Are you a large model?",
      "Tell me who you are.", "What kind of model are you?", "Tell me something about yourself.",
      "Describe yourself.", "Say who you are.", "What model is this?", "Who is this?", "Who am I speaking with?",
      "What are you called?", "Do you have a name?"),
     "I am tiny, a very small Clover model that comes with pyclover."),
    (("Hello!", "Hello", "Hi", "Hi!", "Hey!", "Good morning!", "Hi there!", "Good evening.", "Hello there!", "Hey"),
     "Hello! How can I help you?"),
    (("Thanks!", "Thank you.", "Thank you!", "Thanks a lot.", "Many thanks!", "Great, thanks.", "Thanks",
    "Thank you so much!", "Thanks, that helps.", "Thank you very much.", "Very good, thanks.", "Perfect, thank you."),
     "You are welcome."),
    (("Bye!", "Goodbye.", "See you.", "Bye", "See you later!", "Good night!", "Goodbye!", "I have to go.",
      "Good bye.", "That is all, bye.", "See you tomorrow.", "Bye bye!"), "Goodbye!"),
    (("What can you do?", "What can I ask you?", "How can you help me?", "What are you good at?", "Help", "Help me.",
      "What are your skills?", "What do you know?",
      "What are you able to do?", "What are you good for?", "What can you help me with?", "Tell me what you can do.",
      "Which tasks can you do?", "What tasks can you do?", "What can you help with?", "How can you help?"),
     "I can do small sums, spell words, count, sort, convert units, write JSON and call tools."),
    (("How do I install pyclover?", "How can I install pyclover?", "How is pyclover installed?", "Install pyclover",
      "How do I get pyclover?", "What do I type to install pyclover?", "How to install pyclover?",
      "How do you install pyclover?", "Tell me how to install pyclover.", "What is the way to install pyclover?",
      "Where do I get pyclover?"),
     "Run pip install . in the folder of pyclover."),
    (("How large are you?", "How big are you?", "How many parameters do you have?", "What is your size?",
      "How many weights do you have?", "Are you big?", "How small are you?",
      "How many parameters have you?", "How many parameters does tiny have?", "How many parameters are in you?",
      "What is your number of parameters?", "How large is tiny?", "How big is tiny?", "What size are you?",
      "Are you small?", "How many weights are in you?", "Tell me your size.", "How large is this model?",
      "How small is tiny?"),
     "I have about 2.6 million parameters."),
    (("Do drafts change the text?", "Does drafting change the text?", "Is drafting lossless?",
    "Will drafts change my text?",
      "Does draft-self change the answer?", "Is the text the same with drafts?",
      "Is the text with drafts the same?", "Do I get the same text with drafts?", "Does the text change with drafts?",
      "Is the answer the same with drafts?", "Are drafts lossless?", "Do drafts change the answer?",
      "Will the text be the same with drafts?"),
     "No, lossless drafting gives the same text as plain decoding."),
    (("How do I use pyclover in Python?", "How do I load a model in Python?", "Show me pyclover in Python.",
      "How do I start pyclover in Python?", "Give me an example of pyclover.", "How do I use the Python API?",
      "How do I call pyclover from Python?", "How can I use pyclover in Python?", "How does pyclover work in Python?",
      "Show me the Python API."),
     "Write: with pyclover.Clover(\"tiny\") as m: print(m.generate(\"Hello\").text)"),
    (("Are your answers always right?", "Can I trust you?", "Do you make mistakes?", "Are you always right?",
      "Can you be wrong?", "Should I trust your answers?",
      "Do you always tell the truth?", "Are you ever wrong?", "Can I rely on you?", "Do you make errors?",
      "Are you reliable?"),
     "No. I am very small, so please check what I say."),
)  # fmt: skip


def facts() -> list[tuple[str, str, str]]:
    """(topic, question, answer) of every fact in every phrasing."""
    out = []
    for group, phrasings in ((CONCEPTS, WHAT), (FLAGS, FLAG)):
        out += [(x, p.format(x=x), answer) for x, answer in group.items() for p in phrasings]
    out += [(questions[0], q, answer) for questions, answer in OWN for q in questions]
    return out


FACTS = facts()


def fact(rng: Random) -> Sample:
    topic, question, answer = rng.choice(FACTS)
    return Sample(f"fact:{question}", user(polite(rng, question)), answer, f"a question: {topic.rstrip('?!.')}")
