"""What stands in the way of training a model, all of it at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from torch import Tensor, nn

from anybit.errors import ModelError, did_you_mean, listed
from anybit.quant.kinds import LayerKind, kind_of

_WRAPPERS = {"OptimizedModule": "_orig_mod", "DataParallel": "module", "DistributedDataParallel": "module"}
"""Classes that stand around a model, and where they hold it: their own code takes no other parameters."""
_UNKEYED = (nn.AlphaDropout, nn.FeatureAlphaDropout, nn.RReLU)


def refuse(problems: Sequence[str]) -> None:
    """Raise one error for all problems; none: return."""
    if len(problems) > 1:
        numbered = "; ".join(f"({i}) {problem}" for i, problem in enumerate(problems, 1))
        raise ModelError(f"the model cannot be trained as it is: {numbered}")
    if problems:
        raise ModelError(problems[0])


def check_is_model(model: object) -> None:
    """Raise unless it is a module that can be copied: torch copies no tensor that was computed from others."""
    if not isinstance(model, nn.Module):
        raise ModelError(f"model must be a torch.nn.Module, and is a {type(model).__name__}")
    if inside := _WRAPPERS.get(type(model).__name__):
        raise ModelError(f"the model is wrapped in a {type(model).__name__}: give what is inside, model.{inside}")
    for module_name, module in model.named_modules():
        own = {**vars(module), **module._parameters, **module._buffers}
        kept = [name for name, value in own.items() if isinstance(value, Tensor) and not value.is_leaf]
        if kept:
            where = f"module '{module_name}'" if module_name else "the model"
            raise ModelError(f"{where} keeps a tensor that was computed from others, '{kept[0]}' "
                             "(torch.nn.utils.weight_norm, or outputs of an earlier call), which cannot be copied: remove "
                             "it, as by torch.nn.utils.remove_weight_norm, or set it to None")
    for name, parameter in model.named_parameters():
        if parameter.is_complex():
            raise ModelError(f"parameter '{name}' is complex: give real ones, e.g. real and imaginary part")


def check_initialized(model: nn.Module) -> None:
    """Raise if a lazy module does not know its shapes yet."""
    lazy = [name for name, p in model.named_parameters() if isinstance(p, nn.UninitializedParameter)]
    if lazy:
        raise ModelError(f"parameter '{lazy[0]}' of a lazy layer has no shape yet: run one batch through the model first")


def in_float(model: nn.Module, full_precision: Sequence[str]) -> set[int]:
    """Return the ids of the modules and parameters that are named, or lie in a module that is, under any of their names."""
    everything = (*model.named_modules(remove_duplicate=False), *model.named_parameters(remove_duplicate=False))
    return {id(thing) for name, thing in everything
            if any(name == part or name.startswith(f"{part}.") for part in full_precision)}


def checked_layers(model: nn.Module, full_precision: Sequence[str]) -> dict[str, tuple[LayerKind, nn.Module]]:
    """Return the layers to quantize in the order of `named_modules`, tied ones once; raise on a model that cannot work."""
    check_initialized(model)
    modules, names = dict(model.named_modules()), dict(model.named_modules(remove_duplicate=False))
    parameters, every = dict(model.named_parameters()), dict(model.named_parameters(remove_duplicate=False))
    problems = [f"full_precision names '{name}', which the model does not have: "
                + did_you_mean(name, [n for n in (*names, *every) if n])
                for name in full_precision if name not in names and name not in every]
    name_of, kept = {id(p): name for name, p in parameters.items()}, in_float(model, full_precision)
    problems += _in_training(modules)
    layers, owned = dict[str, tuple[LayerKind, nn.Module]](), set(kept)
    for name, module in modules.items():
        kind = kind_of(module)
        if kind is None or kept & {id(module), *(id(module._parameters.get(weight)) for weight in kind.weights(module))}:
            continue
        problems += _of_layer(name, module, kind)
        layers[name] = kind, module
        for weight in kind.weights(module):
            known = name_of.get(key := id(module._parameters.get(weight)))
            if known and name and key not in owned and known != f"{name}.{weight}":
                problems.append(f"parameter '{known}' is the weight of layer '{name}', too: remove this second name, or "
                                "name it in full_precision")
        owned |= {id(p) for p in module.parameters(recurse=False)}
    if not layers and not problems:
        problems.append("the model has no conv or linear layer to quantize")
    problems += [f"parameter '{name}' {tuple(p.shape)} belongs to no layer that is quantized and would stay in full "
                 "precision: name it in full_precision if this is intended"
                 for name, p in parameters.items() if is_matrix(p) and id(p) not in owned]
    refuse(problems)
    return layers


def is_matrix(parameter: Tensor) -> bool:
    """Tell a matrix from a vector, which may have further dimensions of size 1: (96, 1, 1) scales channels."""
    return sum(size > 1 for size in parameter.shape) > 1


def _in_training(modules: Mapping[str, nn.Module]) -> Iterator[str]:
    """Name the modules of which nothing may be in training, those of one class together."""
    training: dict[type[nn.Module], list[str]] = {}
    for name, module in modules.items():
        if isinstance(module, (nn.modules.batchnorm._BatchNorm, *_UNKEYED)) and module.training:
            training.setdefault(type(module), []).append(name)
    for kind, names in training.items():
        layers, draw, be = ("layer", "draws its", "is") if len(names) == 1 else ("layers", "draw their", "are")
        if issubclass(kind, _UNKEYED):
            yield (f"{layers} {listed(names)} ({kind.__name__}) {draw} own random numbers, which no resume can repeat: use "
                   "nn.Dropout")
        else:
            trained = any(getattr(modules[name], "num_batches_tracked", None) for name in names)
            keep = ", or keep the statistics of an earlier training with .eval() on them" if trained else ""
            yield (f"{layers} {listed(names)} {be} {kind.__name__} in training, whose running statistics do not federate: "
                   f"use anybit.replace_batchnorm(model, groups=2){keep}")


def _of_layer(name: str, module: nn.Module, kind: LayerKind) -> Iterator[str]:
    if not name:
        yield f"the model is a single {kind.of.__name__}: wrap it, as in nn.Sequential(layer)"
    elif kind.computes_otherwise(module):
        yield (f"layer '{name}' is a {type(module).__name__}, a {kind.of.__name__} with its own code: use "
               f"nn.{kind.of.__name__}, or name it in full_precision")
    elif any(weight not in module._parameters for weight in kind.weights(module)):
        yield (f"layer '{name}' ({type(module).__name__}) computes its weight from others (a parametrization): remove it, "
               "or name the layer in full_precision")
    elif reason := kind.refusal(module):
        yield f"layer '{name}' ({type(module).__name__}): {reason}"
