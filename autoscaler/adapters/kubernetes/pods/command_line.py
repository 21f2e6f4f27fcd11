"""The model and the port that a container's command line states, with its environment and a shell's script in it.

Everything here was written by whoever may edit a workload: how much of it is looked at is bounded.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import msgspec

from autoscaler.adapters.kubernetes.api.objects import Container, Variable
from autoscaler.config.annotations import MODEL
from autoscaler.core.model.fleet import ServedNames

ARGUMENTS_LIMIT = 512  # words of a command line that are looked at
SCRIPT_FOLLOWS = re.compile(r"-[a-z]*c")  # `sh -c`, `bash -ec`
SCRIPT_LIMIT = 16_384  # characters, of all scripts of a container: to split them takes 20 ms
VALUE_LIMIT = 256  # characters of a variable that are put in where it is named

_NAME = "--served-model-name"
_MODELS = (_NAME, "--model", "--model-path", "--model-id", "serve", "trtllm-serve")  # the first that is stated wins
_SUBCOMMANDS = ("serve", "trtllm-serve")  # a model may follow
_OPTIONS = (*_MODELS, "--port")
_SAYS_MODEL = re.compile(rf"(^|\s)({'|'.join(_MODELS).replace('-', '[-_]')})(=|\s|$)")
_LOADED = ("--model", "--model-path")  # by which engines name what they load, and so report it
# Options that give names which are not seen here: those of a file, of adapters, and of programs around an engine.
_MORE_NAMES = ("--config", "--config-file", "--enable-lora", "--lora-modules", "--lora-paths", "--model-name")
_ENGINES = ("vllm", "sglang")  # programs that report what they load
# Programs by their name, or by that of their Python package, and the engine that each is.
_PROGRAMS = {
    "vllm": "vllm",
    "sglang": "sglang",
    "text-generation-launcher": "tgi",
    "trtllm-serve": "trtllm",
    "tritonserver": "triton",
}
_SPECULATES = "speculator"  # vLLM loads the model that such a one speculates for, and reports that
_REFERENCE = re.compile(r"\$(?:\$|\((?P<name>[-._a-zA-Z][-._a-zA-Z0-9]*)\))")  # Kubernetes': $(PORT); $$ is a $
_PARAMETER = re.compile(r"\$(?:(?P<plain>[a-zA-Z_]\w*)|\{(?P<braced>[a-zA-Z_]\w*)(?::?-(?P<default>[^}$]*))?\})")
_ASSIGNMENT = re.compile(r"(?P<name>[a-zA-Z_]\w*)=(?P<value>.*)", re.DOTALL)
_ENDS_COMMAND = ";&|()\n"


class Served(NamedTuple):
    """The facts that a command line states; "" and 0 where it does not, or where that cannot be read."""

    model: str = ""
    port: int = 0
    engine: str = ""


def served(container: Container) -> Served:
    """Read the command line of an engine's container. Of several commands in a script the one with a model counts."""
    environment = _environment(container)
    words = (_refer(word, environment) for word in (*(container.command or ()), *(container.args or ())))
    found = [_read(command) for command in _commands(words, environment)]
    first = next((each for each in found if each.model), next((each for each in found if each.port), Served()))
    engine = first.engine or next((each.engine for each in found if each.engine), "")
    if engine == "tgi":  # takes its options from the environment as well
        port = first.port or as_port(environment.get("PORT", ""))
        first = Served(first.model or _model(environment.get("MODEL_ID", "")), port)
    return first._replace(engine=engine)


def reported(container: Container) -> ServedNames | None:
    """Return the names under which an engine started so reports its model; None: no command states one.

    Without any name they are not known: they may come from a variable of a script, a file, or an adapter.
    """
    environment = _environment(container)
    words = (_refer(word, environment) for word in (*(container.command or ()), *(container.args or ())))
    commands = list(_commands(words, None))
    found = [names for command in commands if (names := _reported(command)) is not None]
    return all_of(found) if sum(map(len, commands)) < ARGUMENTS_LIMIT else ServedNames()


def all_of(found: Sequence[ServedNames]) -> ServedNames | None:
    """Return the names of several commands together, known if those of each are; None: there is no command."""
    if not found:
        return None
    if not all(each.names for each in found):
        return ServedNames()
    names = dict.fromkeys(name for each in found for name in each.names)
    return ServedNames(tuple(names), any(each.or_path for each in found))


def states_model(container: Container) -> bool:
    """Say whether a command line looks like that of an engine."""
    return any(_SAYS_MODEL.search(word) for word in (*(container.command or ()), *(container.args or ())))


def as_port(number: object) -> int:
    """Return a port's number; 0: it is none."""
    text = str(number)
    return int(text) if text.isascii() and text.isdigit() and len(text) < 6 and 0 < int(text) < 65_536 else 0


def _read(words: Iterable[str]) -> Served:
    """Find the options of one command. As in argparse, the last of several counts."""
    options: dict[str, str] = {}
    before, engine = "", ""
    for place, word in enumerate(words):
        if word.startswith("--") and "=" in word:
            name, _, value = word.partition("=")
            options[_option(name)] = value
        elif before in _SUBCOMMANDS and word not in _SUBCOMMANDS:
            options.setdefault(before, word)
        elif before in _OPTIONS:
            options[before] = word
        program = "" if before in _OPTIONS else _program(word)
        engine = engine or program
        if word == "serve" and place and not _program(before):  # of another program, such as Ray
            before = ""
        else:
            before = word.rpartition("/")[2] if program else _option(word)
    model = next((options[name] for name in _MODELS if name in options), "")
    engine = engine or ("tgi" if "--model-id" in options else "")
    return Served(_model(model), as_port(options.get("--port", "")), engine)


def _model(name: str) -> str:
    """Return a model's name; "": it is none."""
    known = re.fullmatch(MODEL.expression, name) and "$" not in name and not name.startswith("-")
    return name if known else ""


def _program(word: str) -> str:
    """Return the engine that a word starts, /usr/bin/vllm or sglang.launch_server; "": none."""
    name = word.rpartition("/")[2]
    return _PROGRAMS.get(name) or _PROGRAMS.get(name.partition(".")[0], "")


def _option(word: str) -> str:
    """Return an option as it is documented: engines take underscores for hyphens as well."""
    return word.replace("_", "-") if word.startswith("--") else word


def _reported(words: Sequence[str]) -> ServedNames | None:
    """Read the names in one command, as `reported` says."""
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
    serves = [place for place, word in enumerate(words) if word == "serve"]
    if not serves and not any(option in values for option in _MODELS):
        return None
    for place in serves:
        if place and words[place - 1].rpartition("/")[2] == "vllm":
            loaded += [word for word in words[place + 1 : place + 2] if not word.startswith("-")]
    names = values.get(_NAME, [])
    if any("$" in word or "`" in word for word in words) or any(_hides_names(option) for option in values):
        return ServedNames()
    if names:
        return ServedNames(tuple(names))
    started = any(program in word for word in words for program in _ENGINES)  # else an image may start anything
    if not started or any(_SPECULATES in name.lower() for name in loaded):
        return ServedNames()
    return ServedNames(tuple(loaded), or_path=not all(name.startswith(("/", ".")) for name in loaded))


def _hides_names(option: str) -> bool:
    """Say whether an option may give names that are not seen here: an abbreviated one, or several in one word."""
    abbreviated = option.startswith("--served") and option != _NAME
    return option in _MORE_NAMES or abbreviated or len(option.split()) > 1


def _commands(words: Iterable[str], environment: Mapping[str, str] | None) -> Iterator[list[str]]:
    """Split a command line into commands: one, unless a shell's script is in it (`sh -c "proxy & vllm serve ..."`).

    environment: None: the script's variables stay as they are.
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
    """Split a script into commands, with the variables that it sets itself; one that does not parse has none."""
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
        word = _PARAMETER.sub(partial(_parameter, environment), token)
        assigned = _ASSIGNMENT.fullmatch(word) if command in ([], ["export"]) else None
        if assigned:
            environment[assigned["name"]] = assigned["value"][:VALUE_LIMIT]
        else:
            command.append(word)


def _parameter(environment: Mapping[str, str], match: re.Match[str]) -> str:
    value = environment.get(match["plain"] or match["braced"])
    if value is None:
        value = match["default"]
    return match[0] if value is None else value


def _environment(container: Container) -> dict[str, str]:
    """Return the variables that the container states itself; what comes from a Secret or ConfigMap is not known."""
    try:
        variables = msgspec.json.decode(container.env, type=list[Variable] | None) or []
    except msgspec.MsgspecError:
        return {}
    known: dict[str, str] = {}
    for variable in variables:
        value = _refer(variable.value or "", known)
        if variable.value_from is not None or len(value) > VALUE_LIMIT:
            known.pop(variable.name, None)
        else:
            known[variable.name] = value
    return known


def _refer(word: str, environment: Mapping[str, str]) -> str:
    """Put in variables as Kubernetes does before it starts a container; a name that is not known stays."""
    if "$" not in word or len(word) > SCRIPT_LIMIT:
        return word

    def value(match: re.Match[str]) -> str:
        return "$" if match["name"] is None else environment.get(match["name"], match[0])

    return _REFERENCE.sub(value, word)
