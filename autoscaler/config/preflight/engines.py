"""Checks of the arguments of vLLM, against the devices of its pod."""

from __future__ import annotations

import math
from collections.abc import Iterator

from autoscaler.catalog.devices import is_mig
from autoscaler.catalog.model_shapes import ModelShape, bytes_per_parameter, find_shape, is_quantized
from autoscaler.config.check.engine_memory import ModelFiles, needs_of
from autoscaler.config.model_memory import FitVerdict, Load, Range, judge
from autoscaler.config.preflight import nodes
from autoscaler.config.preflight.command import Command, EngineOption
from autoscaler.config.preflight.objects import Manifest, Result, found, not_checked
from autoscaler.config.preflight.other_engines import EngineFamily
from autoscaler.config.preflight.scene import Scene
from autoscaler.config.preflight.workloads import EnginePod, ModelWorkload
from autoscaler.config.yaml import Loc

DEFAULT_UTILIZATION = 0.92
MOST_UTILIZATION = 0.95
_SPREADS = ("nnodes", "data-parallel-size-local", "data-parallel-address", "data-parallel-hybrid-lb", "node-rank")
_HOT = ("realtime", "interactive")
_FROM_TURING = ("fp8", "awq", "awq_marlin", "gptq_marlin", "marlin", "compressed-tensors", "modelopt")


def check_engines(fleet: Scene) -> Iterator[Result]:
    for workload in fleet.workloads:
        for pod in workload.pods:
            if pod.command is not None:
                yield from _engine(fleet, workload, pod, pod.command)
        if workload.command is None and not workload.pod.operator:
            place = workload.pod.container
            yield not_checked(
                workload.thing, place, "arguments of the engine", "no container starts an engine, so far as one can see"
            )


def _engine(fleet: Scene, workload: ModelWorkload, pod: EnginePod, command: Command) -> Iterator[Result]:
    thing = workload.thing
    if not command.understood and not pod.operator:
        reason = "a script, a variable or a file may add options that are not known"
        yield not_checked(thing, command.args_loc, "all arguments of the engine", reason)
    yield from _utilization(thing, command)
    yield from _statistics(fleet, workload, command)
    yield from _eager(fleet, workload, command)
    if pod.operator != "KubeRay":
        yield from _ranks(thing, pod, command)
    yield from _number_formats(fleet, thing, pod, command)
    yield from _memory(fleet, thing, pod, command)


def _utilization(thing: Manifest, command: Command) -> Iterator[Result]:
    share = command.number("gpu-memory-utilization")
    if share is not None and share > MOST_UTILIZATION:
        option = command.options["gpu-memory-utilization"]
        why = (
            f"{share:g} leaves {1 - share:.0%} of the device for the CUDA context, graphs and what the profile did"
            " not see: the start fails if less is free, and a peak under load ends the engine."
        )
        name = command.written("gpu-memory-utilization")
        message = f"{name} {share:g} is above {MOST_UTILIZATION}"
        yield found(
            "VA1301",
            thing,
            option.loc,
            message,
            why,
            _as_written(thing, option, f"{name}={DEFAULT_UTILIZATION}"),
        )


def _statistics(fleet: Scene, workload: ModelWorkload, command: Command) -> Iterator[Result]:
    thing = workload.thing
    if command.other is not None:
        yield from _other_metrics(thing, command, command.other)
        return
    if "disable-log-stats" in command.options:
        why = (
            "The logger that writes vllm:* is removed by it. Whoever reads them reads nothing, which KEDA takes for 0."
        )
        loc = command.options["disable-log-stats"].loc
        yield found("VA1305", thing, loc, "the engine exports none of its metrics", why, "remove --disable-log-stats")
    pooling = {"runner", "task"} & command.options.keys()
    if command.understood and "max-num-seqs" not in command.options and not pooling:
        why = (
            "Its default depends on the version, the device and the use, so each threshold on a replica's load does"
            " too."
        )
        yield found(
            "VA1306",
            thing,
            command.args_loc,
            "--max-num-seqs is not stated",
            why,
            "--max-num-seqs=64, or what was measured",
        )


def _other_metrics(thing: Manifest, command: Command, engine: EngineFamily) -> Iterator[Result]:
    option = engine.metrics_by
    if option and command.understood and option not in command.options:
        why = f"{engine.name} exports metrics with --{option} alone, and whoever reads them reads nothing."
        yield found("VA1604", thing, command.args_loc, "the engine exports no metrics", why, f"add --{option}")


def _eager(fleet: Scene, workload: ModelWorkload, command: Command) -> Iterator[Result]:
    if "enforce-eager" not in command.options or workload.is_batch:
        return
    hot = workload.policy in _HOT or fleet.is_autoscaled(workload)
    why = "Without CUDA graphs each step launches each kernel by itself, which small batches feel most."
    loc, name = command.options["enforce-eager"].loc, command.written("enforce-eager")
    severity = "" if hot else "note"
    yield found("VA1307", workload.thing, loc, f"{name} makes each token slower", why, f"remove {name}", severity)


def _ranks(thing: Manifest, pod: EnginePod, command: Command) -> Iterator[Result]:
    tensor, pipeline = command.whole("tensor-parallel-size"), command.whole("pipeline-parallel-size")
    data = command.whole("data-parallel-size")
    devices = sum(pod.devices.values())
    resource = nodes.resource_of(pod)
    if not devices or any(name in command.options for name in _SPREADS):
        return
    limits: Loc = (*pod.container, "resources", "limits")
    if tensor > 1 and is_mig(resource, "") and devices >= tensor:
        why = (
            "Slices of a GPU have no link between them, and a container that asks for several sees them as separate"
            " devices."
        )
        yield found(
            "VA1310", thing, limits, "tensor parallel over slices of a GPU", why, "one larger slice, or whole GPUs"
        )
        return
    size = 1
    if thing.kind == "LeaderWorkerSet":
        stated = thing.at("spec", "leaderWorkerTemplate", "size")
        size = stated if isinstance(stated, int) and not isinstance(stated, bool) and stated > 0 else 1
    backend = command.options.get("distributed-executor-backend")
    if (backend is not None and backend.value == "ray") or size > 1:
        if tensor * pipeline * data > devices * size and size > 1:
            yield _too_few(thing, limits, tensor * pipeline * data, devices * size)
        return
    if tensor * pipeline * data > devices:
        yield _too_few(thing, limits, tensor * pipeline * data, devices)


def _too_few(thing: Manifest, limits: Loc, ranks: int, devices: float) -> Result:
    why = (
        f"The engine is told to use {ranks} GPUs and sees {devices:g}; vLLM ends with `World size ({ranks}) is"
        f" larger than the number of available GPUs ({devices:g})`."
    )
    message = f"parallel over {ranks} GPUs, and the pod requests {devices:g}"
    return found("VA1304", thing, limits, message, why, f'nvidia.com/gpu: "{ranks}"')


def _number_formats(fleet: Scene, thing: Manifest, pod: EnginePod, command: Command) -> Iterator[Result]:
    dtype, quantization = command.options.get("dtype"), command.options.get("quantization")
    wants = dtype is not None and dtype.value == "bfloat16"
    if not (wants or quantization is not None) or not pod.devices:
        return
    highest = nodes.capability(fleet, pod)
    if math.isnan(highest):
        for option, name in ((dtype if wants else None, "dtype"), (quantization, "quantization")):
            if option is not None:
                yield not_checked(
                    thing, option.loc, f"--{name} against the device", "which device the pod gets is not known"
                )
        return
    if wants and dtype is not None and highest < 8.0:
        why = f"bfloat16 needs compute capability 8.0, and the device has {highest:g}; vLLM refuses to start."
        yield found(
            "VA1308",
            thing,
            dtype.loc,
            "bfloat16 on a device without it",
            why,
            _as_written(thing, dtype, "--dtype=half"),
        )
    if quantization is not None and quantization.value in _FROM_TURING and highest < 7.5:
        why = (
            f"{quantization.value} needs compute capability 7.5, and the device has {highest:g}; vLLM refuses to start."
        )
        yield found(
            "VA1309",
            thing,
            quantization.loc,
            f"{quantization.value} on a device without it",
            why,
            "another quantization, or another device",
        )


def _memory(fleet: Scene, thing: Manifest, pod: EnginePod, command: Command) -> Iterator[Result]:
    """Compare weights and the longest request with the device. Sizes are those of well-known models."""
    if not pod.devices or not command.model:
        return
    shape, size = find_shape(command.model), bytes_per_parameter(command.model)
    memory = nodes.memories(fleet, pod)
    place = command.options["max-model-len"].loc if "max-model-len" in command.options else command.args_loc
    if shape is None or size is None or memory is None:
        reason = (
            "which device the pod gets is not known"
            if memory is None
            else "the size of the model is not known; `check --fit` asks a hub"
        )
        yield not_checked(thing, command.model_loc or place, "weights and context against the device", reason)
        return
    if any(way for way, _ in nodes.sharers(fleet, pod)):
        return  # VA1502 is about these
    is_vllm = command.other is None
    load = needs_of(command.plain(), _files(command.model, shape, size), sum(pod.devices.values()), is_vllm=is_vllm)
    if load.devices > sum(pod.devices.values()) * 64:
        return
    # Weights alone are compared without a cache.
    alone = judge(load._replace(kv_per_token=Range(0.0, 0.0), context=Range(0.0, 0.0)), memory)
    name = command.model.rpartition("/")[2][:100]
    if alone.verdict is FitVerdict.DOES_NOT_FIT:
        loc: Loc = (*pod.container, "resources", "limits")
        why = f"The engine {alone.sentence}. Loading ends with out of memory, and the pod restarts for ever."
        yield found(
            "VA1303",
            thing,
            loc,
            f"the weights of {name} do not fit the device",
            why,
            "a larger slice, more devices, or a quantized model",
        )
        return
    if not is_vllm or "kv-cache-memory-bytes" in command.options or "cpu-offload-gb" in command.options:
        return
    fit = judge(load, memory)
    if fit.verdict is FitVerdict.DOES_NOT_FIT:
        fits = _longest(load, memory)
        why = f"The engine {fit.sentence}. vLLM refuses to start."
        fix = f"--max-model-len={fits}" if fits else "a larger device, or an fp8 cache"
        stated = f"{load.context.least:,.0f} tokens"
        yield found("VA1302", thing, place, f"a context of {stated} is longer than the KV cache can hold", why, fix)


def _longest(load: Load, memory: Range) -> int:
    """Return the longest usual context that fits for certain; 0: none."""
    for tokens in (65_536, 32_768, 16_384, 8_192, 4_096, 2_048):
        if judge(load._replace(context=Range(tokens, tokens)), memory).verdict is FitVerdict.FITS:
            return tokens
    return 0


def _files(model: str, shape: ModelShape, size: tuple[float, float]) -> ModelFiles:
    config: dict[str, object] = {
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.kv_heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "max_position_embeddings": shape.context,
        "architectures": ["ForCausalLM"],
        "torch_dtype": "bfloat16",
    }
    if shape.windowed:
        config["sliding_window"] = 4096
    if is_quantized(model):
        config["quantization_config"] = {"quant_method": "by name"}
    weights = Range(shape.parameters * size[0], shape.parameters * size[1])
    return ModelFiles(weights, config, f"{shape.parameters / 1e9:g} billion parameters")


def _as_written(thing: Manifest, option: EngineOption, right: str) -> str:
    """Return the word of an option with the right value, or the option alone if a variable or a file states it."""
    written = str(thing.at(*option.loc))[:300]
    return written.replace(option.value, right.partition("=")[2]) if option.value in written else right
