"""Model, port, engine and slots from a container's command line, its environment and a shell script in it.

The input is untrusted: every user who may edit a workload writes it. So the amount that is read is limited.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from autoscaler.adapters.kubernetes.api.pod_objects import Container, Variable
from autoscaler.catalog.weights import MODEL_VARIABLES, REVISION_VARIABLES
from autoscaler.config.annotations import MODEL
from autoscaler.config.findings import UNREADABLE
from autoscaler.core.model.fleet import ServedNames

ARGUMENTS_LIMIT = 512  # words of a command line that are read
SCRIPT_FOLLOWS = re.compile(r"-[a-z]*c")  # `sh -c`, `bash -ec`
SCRIPT_LIMIT = 16_384  # characters of all scripts of a container; splitting them takes 20 ms
LOADER_LIMIT = 64
VALUE_LIMIT = 256  # characters of a variable that are substituted

_NAME = "--served-model-name"
_MODELS = (_NAME, "--model", "--model-path", "--model-id", "serve", "trtllm-serve")  # the first stated option is used
_SUBCOMMANDS = ("serve", "trtllm-serve")  # a model name may follow
# Options of vLLM that decide how much memory it needs, by each of their names.
MEMORY_OPTIONS: Mapping[str, str] = MappingProxyType(
    {
        "--max-model-len": "max-model-len",
        "--tensor-parallel-size": "tensor-parallel-size",
        "-tp": "tensor-parallel-size",
        "--pipeline-parallel-size": "pipeline-parallel-size",
        "-pp": "pipeline-parallel-size",
        "--data-parallel-size": "data-parallel-size",
        "-dp": "data-parallel-size",
        "--quantization": "quantization",
        "-q": "quantization",
        "--dtype": "dtype",
        "--kv-cache-dtype": "kv-cache-dtype",
        "--gpu-memory-utilization": "gpu-memory-utilization",
        "--cpu-offload-gb": "cpu-offload-gb",
        "--config": "config",
        "--hf-overrides": "hf-overrides",
        "--kv-cache-memory-bytes": "kv-cache-memory-bytes",
    }
)
# Options that state how many requests an engine runs at once, which neither engine reports. In vLLM each rank runs so
# many. Without the option vLLM's number depends on its version and on the memory of the GPU.
_SLOTS = {"--max-num-seqs": "vllm", "--max-running-requests": "sglang"}
_RANKS = ("--data-parallel-size", "-dp", "--dp-size", "--dp")
_SPREAD = re.compile(r"-dp[a-z]+$|--data-parallel-(?!size$)")  # options with which a pod may run some ranks only
MAX_SLOTS = 1_000_000  # of a pod; far more than any engine can run
_LOADS = ("--model", "--model-path", "--model-id", "serve", "trtllm-serve")
_REVISION = "--revision"
_LOADER = "--load-format"
_OPTIONS = (*_MODELS, "--port", _REVISION, _LOADER, *_SLOTS, *_RANKS, *MEMORY_OPTIONS)
_SAYS_MODEL = re.compile(rf"(^|\s)({'|'.join(_MODELS).replace('-', '[-_]')})(=|\s|$)")
_LOADED = ("--model", "--model-path")  # engines report the name that these options load
# Options that give names which are not read: of a file, of adapters, and of programs around an engine.
_MORE_NAMES = ("--config", "--config-file", "--enable-lora", "--lora-modules", "--lora-paths", "--model-name")
_ENGINES = ("vllm", "sglang")  # programs that report the model that they load
# Engines by the name of the program or of its Python package.
_PROGRAMS = {
    "vllm": "vllm",
    "sglang": "sglang",
    "text-generation-launcher": "tgi",
    "trtllm-serve": "trtllm",
    "tritonserver": "triton",
}
_SPECULATOR = "speculator"  # of such a model vLLM loads, and reports, the model that it speculates for
_REFERENCE = re.compile(r"\$(?:\$|\((?P<name>[-._a-zA-Z][-._a-zA-Z0-9]*)\))")  # Kubernetes': $(PORT); $$ is a $
_PARAMETER = re.compile(r"\$(?:(?P<plain>[a-zA-Z_]\w*)|\{(?P<braced>[a-zA-Z_]\w*)(?::?-(?P<default>[^}$]*))?\})")
_ASSIGNMENT = re.compile(r"(?P<name>[a-zA-Z_]\w*)=(?P<value>.*)", re.DOTALL)
_ENDS_COMMAND = ";&|()\n"


class CommandFacts(NamedTuple):
    """The facts that a command line states; "" and 0: not stated or not readable."""

    model: str = ""
    port: int = 0
    engine: str = ""
    loads: str = ""  # model that is loaded, whatever its name when served
    memory: tuple[tuple[str, str], ...] = ()  # stated options of `MEMORY_OPTIONS`
    revision: str = ""  # of the model that is loaded
    loader: str = ""  # load format of the weights, "runai_streamer"; "": the engine's own
    slots: int = 0  # requests that the pod can run at once


def read_command_line(container: Container) -> CommandFacts:
    """Read the command line of an engine's container. If a script has several commands, the one with a model counts."""
    environment = stated_variables(container)
    words = (_expand(word, environment) for word in (*(container.command or ()), *(container.args or ())))
    found = [_read_command(command) for command in _commands(words, environment)]
    likely = (each for each in found if each.model or each.port or each.slots)
    first = min(likely, key=lambda each: 0 if each.model else 1 if each.port else 2, default=CommandFacts())
    engine = first.engine or next((each.engine for each in found if each.engine), "")
    if engine == "tgi":  # reads options from the environment too
        port = first.port or as_port(environment.get("PORT", ""))
        model = first.model or _model(environment.get("MODEL_ID", ""))
        first = first._replace(model=model, loads=first.loads or model, port=port)
    if not first.loads or (engine == "tgi" and not first.revision):
        first = _add_variables(first, environment)
    return first._replace(engine=engine)


def _add_variables(stated: CommandFacts, environment: Mapping[str, str]) -> CommandFacts:
    """Return the facts with the model that an image loads by variables. Names of served models look the same."""
    models = (_model(environment.get(name, "")) for name in MODEL_VARIABLES)
    loads = stated.loads or next((name for name in models if "/" in name), "")
    revision = stated.revision or next(filter(None, map(environment.get, REVISION_VARIABLES)), "")
    return stated._replace(loads=loads, revision=revision if loads else "")


def read_served_names(container: Container) -> ServedNames | None:
    """Return the model names that an engine with this command line reports; None: no command names a model.

    The names are empty if they are not known: they may come from a script's variable, a file, or an adapter.
    """
    environment = stated_variables(container)
    words = (_expand(word, environment) for word in (*(container.command or ()), *(container.args or ())))
    commands = list(_commands(words, None))
    found = [names for command in commands if (names := _read_names(command)) is not None]
    return merge_names(found) if sum(map(len, commands)) < ARGUMENTS_LIMIT else ServedNames()


def merge_names(found: Sequence[ServedNames]) -> ServedNames | None:
    """Merge the names of several commands. They are known only if all of them are; None: there is no command."""
    if not found:
        return None
    if not all(each.names for each in found):
        return ServedNames()
    names = dict.fromkeys(name for each in found for name in each.names)
    return ServedNames(tuple(names), any(each.or_path for each in found))


def expanded_words(container: Container) -> list[str]:
    """Return the words of a command line as Kubernetes starts it."""
    environment = stated_variables(container)
    return [_expand(word, environment) for word in (*(container.command or ()), *(container.args or ()))]


def states_model(container: Container) -> bool:
    """Return whether a command line names a model."""
    return any(_SAYS_MODEL.search(word) for word in (*(container.command or ()), *(container.args or ())))


def as_port(number: object) -> int:
    """Parse a port number; 0: invalid."""
    text = str(number)
    return int(text) if text.isascii() and text.isdigit() and len(text) < 6 and 0 < int(text) < 65_536 else 0


def _read_command(words: Sequence[str]) -> CommandFacts:
    """Read the options of one command. The last of equal options counts, as in argparse."""
    options: dict[str, str] = {}
    before, engine = "", ""
    for index, word in enumerate(words):
        if word.startswith("-") and "=" in word:
            name, _, value = word.partition("=")
            options[_option(name)] = value
        elif before in _SUBCOMMANDS and word not in _SUBCOMMANDS:
            options.setdefault(before, word)
        elif before in _OPTIONS:
            options[before] = word
        program = "" if before in _OPTIONS else _program(word)
        engine = engine or program
        if word == "serve" and index and not _program(before):  # a subcommand of another program, such as Ray
            before = ""
        else:
            before = word.rpartition("/")[2] if program else _option(word)
    model = next((options[name] for name in _MODELS if name in options), "")
    engine = engine or ("tgi" if "--model-id" in options else "")
    loads = next((options[name] for name in _LOADS if name in options), "")
    memory = {MEMORY_OPTIONS[name]: value[:VALUE_LIMIT] for name, value in options.items() if name in MEMORY_OPTIONS}
    return CommandFacts(
        _model(model),
        as_port(options.get("--port", "")),
        engine,
        _model(loads),
        tuple(sorted(memory.items())),
        _model(options.get(_REVISION, "")),
        _loader(options.get(_LOADER, "")),
        0 if any(_SPREAD.match(_option(word.partition("=")[0])) for word in words) else _read_slots(options),
    )


def _read_slots(options: Mapping[str, str]) -> int:
    """Return the requests that an engine runs at once on all its ranks; 0: not stated, or not readable."""
    name = next((name for name in _SLOTS if name in options), "")
    ranks = _whole(next((options[option] for option in _RANKS if option in options), "1"))
    if _SLOTS.get(name) == "sglang" and ranks != 1:  # whether they share the slots depends on its version
        return 0
    slots = _whole(options.get(name, "")) * ranks
    return slots if slots <= MAX_SLOTS else 0


def _whole(text: str) -> int:
    """Return a whole number of an option; 0: it is none, or more than any engine can run."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= len(str(MAX_SLOTS)) else 0


def _model(name: str) -> str:
    """Return a valid model name; "": it is not one."""
    known = re.fullmatch(MODEL.expression, name) and "$" not in name and not name.startswith("-")
    return name if known else ""


def _loader(name: str) -> str:
    """Return a valid load format; "": it is not one, or the default."""
    known = name.isascii() and name.replace("_", "").isalnum() and len(name) <= LOADER_LIMIT
    return name if known and name != "auto" else ""


def _program(word: str) -> str:
    """Return the engine that a word such as /usr/bin/vllm or sglang.launch_server starts; "": none."""
    name = word.rpartition("/")[2]
    return _PROGRAMS.get(name) or _PROGRAMS.get(name.partition(".")[0], "")


def _option(word: str) -> str:
    """Return an option with hyphens. Engines also accept underscores."""
    return word.replace("_", "-") if word.startswith("--") else word


def _read_names(words: Sequence[str]) -> ServedNames | None:
    """Read the model names of one command, as `read_served_names` does."""
    values: dict[str, list[str]] = {}
    option = ""
    for word in words:
        if word.startswith("-"):
            name, stated, value = word.partition("=")
            option = _option(name)
            values.setdefault(option, []).extend([value] if stated else [])
        elif option:
            values[option].append(word)
    loaded = [values[option][0] for option in _LOADED if values.get(option)]
    serves = [index for index, word in enumerate(words) if word == "serve"]
    if not serves and not any(option in values for option in _MODELS):
        return None
    for index in serves:
        if index and words[index - 1].rpartition("/")[2] == "vllm":
            loaded += [word for word in words[index + 1 : index + 2] if not word.startswith("-")]
    names = values.get(_NAME, [])
    if any("$" in word or "`" in word for word in words) or any(_hides_names(option) for option in values):
        return ServedNames()
    if names:
        return ServedNames(tuple(names))
    started = any(program in word for word in words for program in _ENGINES)  # otherwise the image decides what runs
    if not started or any(_SPECULATOR in name.lower() for name in loaded):
        return ServedNames()
    return ServedNames(tuple(loaded), or_path=not all(name.startswith(("/", ".")) for name in loaded))


def _hides_names(option: str) -> bool:
    """Return whether an option may give names that are not read: an abbreviation, or several options in one word."""
    abbreviated = option.startswith("--served") and option != _NAME
    return option in _MORE_NAMES or abbreviated or len(option.split()) > 1


def _commands(words: Iterable[str], environment: Mapping[str, str] | None) -> Iterator[list[str]]:
    """Split a command line into commands. There is one, unless it has a script (`sh -c "proxy & vllm serve ..."`).

    environment: None: the variables of the script are not substituted.
    """
    plain: list[str] = []
    left, script_left = ARGUMENTS_LIMIT, SCRIPT_LIMIT
    before = ""
    for word in words:
        if left <= 0:
            break
        if not SCRIPT_FOLLOWS.fullmatch(before):
            plain.append(word)
            left -= 1
        elif len(word) <= script_left:
            script_left -= len(word)
            for command in _split(word, None if environment is None else dict(environment)):
                yield command[:left]
                left -= len(command)
                if left <= 0:
                    break
        before = word
    yield plain


def _split(script: str, environment: dict[str, str] | None) -> Iterator[list[str]]:
    """Split a script into commands, with its own variables substituted; an invalid script has no command."""
    lexer = shlex.shlex(script.replace("\\\n", " "), posix=True, punctuation_chars=_ENDS_COMMAND)
    lexer.whitespace, lexer.whitespace_split = " \t\r", True
    try:
        tokens = list(lexer)
    except ValueError:
        return
    command: list[str] = []
    for token in (*tokens, "\n"):
        if not token.strip(_ENDS_COMMAND):
            yield command
            command = []
            continue
        if environment is None:
            command.append(token)
            continue
        word = _PARAMETER.sub(partial(_expand_parameter, environment), token)
        assigned = _ASSIGNMENT.fullmatch(word) if command in ([], ["export"]) else None
        if assigned:
            environment[assigned["name"]] = assigned["value"][:VALUE_LIMIT]
        else:
            command.append(word)


def _expand_parameter(environment: Mapping[str, str], match: re.Match[str]) -> str:
    value = environment.get(match["plain"] or match["braced"])
    if value is None:
        value = match["default"]
    return match[0] if value is None else value


def stated_variables(container: Container) -> dict[str, str]:
    """Return the variables with a stated value. Values from Secrets and ConfigMaps are not known."""
    try:
        variables = msgspec.json.decode(container.env, type=list[Variable] | None) or []
    except UNREADABLE:
        return {}
    known: dict[str, str] = {}
    for variable in variables:
        value = _expand(variable.value or "", known)
        if variable.value_from is not None or len(value) > VALUE_LIMIT:
            known.pop(variable.name, None)
        else:
            known[variable.name] = value
    return known


def _expand(word: str, environment: Mapping[str, str]) -> str:
    """Substitute $(VARIABLES) as Kubernetes does before it starts a container; an unknown name stays."""
    if "$" not in word or len(word) > SCRIPT_LIMIT:
        return word

    def value(match: re.Match[str]) -> str:
        return "$" if match["name"] is None else environment.get(match["name"], match[0])

    return _REFERENCE.sub(value, word)
