"""Options of an engine, each with its place in the manifest."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from autoscaler.catalog.accelerators import is_accelerator
from autoscaler.config.check.manifests import at, mapping, text_at
from autoscaler.config.drain import is_vllm_image
from autoscaler.config.preflight.mounted import PodInputs
from autoscaler.config.preflight.other_engines import TGI, EngineFamily, family_of
from autoscaler.config.yaml import Loc, read_documents

MAX_WORDS = 1024
MAX_SCRIPT = 16_384
MAX_FILLED = 1 << 16  # characters that variables may bring into a word
_SHELL_FLAG = re.compile(r"-[a-z]*c")
_SHORT = {
    "-tp": "tensor-parallel-size",
    "-pp": "pipeline-parallel-size",
    "-dp": "data-parallel-size",
    "-q": "quantization",
}
_SHORT |= {"-O": "optimization-level", "-cc": "compilation-config"}
_REFERENCE = re.compile(r"\$\(([-._a-zA-Z][-._a-zA-Z0-9]*)\)")
_SHELL_REFERENCE = re.compile(r"\$(?:\{([a-zA-Z_]\w*)\}|([a-zA-Z_]\w*))", re.ASCII)
_OPTION = re.compile(r"--|-[a-zA-Z]")  # -1 is a value
_PLAIN_SCRIPT = re.compile(r"[^$`;&|<>(){}*?\n]*")
_STARTS = re.compile(r"\bvllm(\.entrypoints|\s+serve)\b|\bsglang\.launch_server\b|\btext-generation-launcher\b")
EXTRA_ARGS = ("VLLM_ADDITIONAL_ARGS", "VLLM_EXTRA_ARGS", "VLLM_ARGS")  # variables that a platform's script appends
_OWN_OPTIONS = frozenset(
    {"max-num-seqs", "gpu-memory-utilization", "served-model-name", "max-model-len", "max-num-batched-tokens"}
    | {"tensor-parallel-size", "kv-cache-dtype", "disable-log-stats", "enforce-eager"}
)
"""Options of vLLM: two of them, or one and a model, are its command line."""
_SWITCHES = frozenset(
    {"disable-log-stats", "enforce-eager", "trust-remote-code", "enable-lora", "no-enable-prefix-caching"}
    | {"enable-prefix-caching", "enable-chunked-prefill", "no-enable-chunked-prefill", "enable-sleep-mode"}
    | {"enable-metrics", "disable-cuda-graph", "disable-radix-cache", "enable-mixed-chunk", "enable-dp-attention"}
    | {"disable-log-requests", "enable-auto-tool-choice", "enable-expert-parallel", "no-enable-log-requests"}
)


@dataclass(frozen=True)
class EngineOption:
    """The value of an option, and the place of the value."""

    value: str  # "" for a switch
    loc: Loc


@dataclass(frozen=True)
class Command:
    """What the command line of an engine says."""

    options: Mapping[str, EngineOption] = field(default_factory=dict)  # by name without hyphens in front
    model: str = ""
    model_loc: Loc = ()
    served: tuple[str, ...] = ()  # names of the model as it is served
    args_loc: Loc = ()  # of the list of arguments, for options that are missing
    understood: bool = True  # False: a script or a variable may hide options
    starts: bool = False  # whether it starts the engine, rather than an image whose entrypoint does
    other: EngineFamily | None = None  # None: vLLM

    def number(self, name: str) -> float | None:
        """Return the number of an option; None: absent or not a number."""
        option = self.options.get(name)
        text = option.value if option is not None else ""
        if not text or len(text) > 32 or not text.isascii() or not re.fullmatch(r"\d+(\.\d*)?|\.\d+", text):
            return None
        return float(text)

    def whole(self, name: str, default: int = 1) -> int:
        number = self.number(name)
        return int(number) if number is not None and 1 <= number <= 4096 else default

    @property
    def model_label(self) -> str:
        """The value of the label model_name; "": unknown, or the engine writes none."""
        if self.other is TGI:
            return ""
        return self.served[0] if self.served else self.model

    def written(self, name: str) -> str:
        """Return an option as this engine names it: --enforce-eager, --disable-cuda-graph."""
        same = self.other.same if self.other is not None else {}
        return f"--{next((theirs for theirs, ours in same.items() if ours == name), name)}"

    def plain(self) -> dict[str, str]:
        return {name: option.value for name, option in self.options.items()}


def read_command(container: object, loc: Loc, inputs: PodInputs) -> Command | None:
    """Read the command line of a container; None: it does not start an engine, so far as one can see.

    loc: place of the container. inputs: what ConfigMaps give it.
    """
    words, understood = _words(container, loc, inputs)
    plain = [word for word, _ in words]
    serve = next(
        (i + 1 for i, word in enumerate(plain) if word == "serve" and i and plain[i - 1].rpartition("/")[2] == "vllm"),
        0,
    )
    module = next((i + 1 for i, word in enumerate(plain) if word.startswith("vllm.entrypoints.")), 0)
    by_image = not at(container, "command") and is_vllm_image(_without_tag(text_at(container, "image")))
    if by_image and not (serve or module):
        # Other programs have images of such names, as this one.
        by_image = requests_device(container) or any(word.startswith(("--model", "--served")) for word in plain)
    if not at(container, "command") and not by_image:
        by_image = _has_own_options(plain)  # an image of one's own, with the usual entrypoint
    args = (
        (*loc, "args") if at(container, "args") else (*loc, "command") if at(container, "command") else (*loc, "args")
    )
    if not (serve or module or by_image):
        other = family_of(plain, text_at(container, "image"), by_image=not at(container, "command"))
        return None if other is None else _of_family(*other, words, args, understood=understood)
    command = _parse(words[serve or module :], args, understood, positional=bool(serve), starts=bool(serve or module))
    return _with_file(command, container, inputs)


def _has_own_options(words: list[str]) -> bool:
    names = {word.partition("=")[0].lstrip("-").replace("_", "-") for word in words if word.startswith("--")}
    return len(names & _OWN_OPTIONS) + ("model" in names) >= 2 and "model-path" not in names


def _of_family(
    family: EngineFamily, start: int, words: list[tuple[str, Loc]], args: Loc, *, understood: bool
) -> Command:
    """Return the command line of another engine, with the names of vLLM for options that mean the same."""
    command = _parse(words[start:], args, understood, positional=False, starts=start > 0)
    options = {family.same.get(name, name): option for name, option in command.options.items()}
    model = options.get("model", EngineOption("", ()))
    return replace(command, options=options, model=model.value, model_loc=model.loc, other=family)


def _with_file(command: Command, container: object, inputs: PodInputs) -> Command:
    """Add the options of the file that `--config` names; those of the command line count before them."""
    stated = command.options.get("config")
    if stated is None:
        return command
    text = inputs.file(container, stated.value)
    documents = read_documents("", text)[0] if text is not None else []
    if len(documents) != 1 or not isinstance(documents[0].value, dict):
        return replace(command, understood=False)
    own = of_keywords(documents[0].value, text_at(documents[0].value, "model"), stated.loc)
    return replace(
        command,
        options={**own.options, **command.options},
        model=command.model or own.model,
        model_loc=command.model_loc or own.model_loc,
        served=command.served or own.served,
    )


def of_keywords(arguments: Mapping[str, object], model: str, loc: Loc) -> Command:
    """Return the options of an engine that Python code starts: those of its keyword arguments, at one place."""
    options = {
        str(name).replace("_", "-"): EngineOption("" if value is True else str(value)[:MAX_SCRIPT], loc)
        for name, value in list(arguments.items())[:MAX_WORDS]
        if value is not False and isinstance(value, str | int | float)
    }
    names = next((arguments[key] for key in ("served-model-name", "served_model_name") if key in arguments), None)
    served = tuple(str(each) for each in (names[:64] if isinstance(names, list) else [names]) if each is not None)
    return Command(options, model, loc, served, args_loc=loc, understood=False)


def of_words(text: str, loc: Loc) -> dict[str, EngineOption]:
    """Return the options of a line such as VLLM_ADDITIONAL_ARGS."""
    return dict(_parse([(word, loc) for word in _split(text)], loc, True, positional=False, starts=False).options)


def _parse(words: list[tuple[str, Loc]], args: Loc, understood: bool, *, positional: bool, starts: bool) -> Command:
    options: dict[str, EngineOption] = {}
    served: list[str] = []
    model = ""
    model_loc: Loc = ()
    index = 0
    if positional and words and not words[0][0].startswith("-"):
        model, model_loc = words[0]
        index = 1
    while index < len(words):
        word, place = words[index]
        index += 1
        if not word.startswith("-") or word == "-":
            continue
        name, stated, value = word.partition("=")
        name = _SHORT.get(name, name.lstrip("-").replace("_", "-"))
        if stated:
            values = [(value, place)]
        else:
            values = []
            most = 0 if name in _SWITCHES else 64 if name in ("served-model-name", "lora-modules") else 1
            while len(values) < most and index < len(words) and not _OPTION.match(words[index][0]):
                values.append(words[index])
                index += 1
        options[name] = EngineOption(*values[0]) if values else EngineOption("", place)
        if name == "served-model-name":
            served = [each for each, _ in values]
    if not model and "model" in options:
        model, model_loc = options["model"].value, options["model"].loc
    hidden = any("$" in word for word, _ in words)
    return Command(options, model, model_loc, tuple(served), args, understood and not hidden, starts)


def _words(container: object, loc: Loc, inputs: PodInputs) -> tuple[list[tuple[str, Loc]], bool]:
    """Return the words with their places, and whether all were understood."""
    known = inputs.variables(container)
    found: list[tuple[str, Loc]] = []
    understood, before = True, ""
    for part in ("command", "args"):
        listed = at(container, part)
        for index, each in enumerate(listed if isinstance(listed, list) else []):
            if len(found) >= MAX_WORDS:
                return found, False
            word = str(each) if isinstance(each, str | int | float) and not isinstance(each, bool) else ""
            word = _filled(_REFERENCE, word[:MAX_SCRIPT], known)
            place = (*loc, part, index)
            if _SHELL_FLAG.fullmatch(before) and word == "--":
                continue
            script_file = None if before.startswith("--") or not word.startswith("/") else inputs.file(container, word)
            if _SHELL_FLAG.fullmatch(before) or script_file is not None:
                word = script_file or word
                script = word.replace("\\\n", " ").strip()
                script = _filled(_SHELL_REFERENCE, script, known)
                understood = understood and bool(_PLAIN_SCRIPT.fullmatch(script))
                found += [(each, place) for each in _engine_line(script)]
            else:
                found.append((word, place))
            before = word
    return found, understood


def _filled(reference: re.Pattern[str], text: str, known: Mapping[str, str]) -> str:
    """Return a text with the values of variables; as it is, with its references, where they would make it long."""
    size = sum(len(known.get(match[match.lastindex or 1], "")) for match in reference.finditer(text))
    if size > MAX_FILLED:
        return text
    return reference.sub(lambda match: known.get(match[match.lastindex or 1], match[0]), text)


def _engine_line(script: str) -> list[str]:
    """Return the words of the line of a script that starts vLLM, or of the whole script."""
    lines = re.split(r"\n|&&|;", script)
    line = next((each for each in lines if _STARTS.search(each)), script)
    return _split(line)


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text[:MAX_SCRIPT])[:MAX_WORDS]
    except ValueError:
        return text[:MAX_SCRIPT].split()[:MAX_WORDS]


def requests_device(container: object) -> bool:
    """Return whether a container asks for an accelerator."""
    return any(
        is_accelerator(name) for part in ("limits", "requests") for name in mapping(at(container, "resources", part))
    )


def _without_tag(image: str) -> str:
    return image.partition("@")[0]
