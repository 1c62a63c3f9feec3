"""The configuration of a run. Every default stands here, or in the signature of a model, data source or variant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from anybit import recipes
from anybit.errors import ConfigError, at_least, did_you_mean, positive
from anybit.federated.client import ClientOptions as ClientOptions
from anybit.federated.own import OBJECT as OBJECT
from anybit.federated.privacy import PrivacyOptions as PrivacyOptions
from anybit.federated.sampling import SamplingOptions
from anybit.federated.server import ServerOptions
from anybit.federated.variants import StepRule
from anybit.quant.grid import SiteKinds, check_bits
from anybit.quant.ranges import SPREAD, ActivationRule, RangeRule
from anybit.quant.sites import SiteOptions
from anybit.schema import check_types, read

EngineName = Literal["auto", "sequential", "stacked", "processes"]
Precision = Literal["tf32", "fp32", "bf16"]
Convolution = Literal["default", "no-onednn", "channels-last", "native"]
MOST_PLACES = 10
"""Of a cohort whose size is left open."""
MOST_THREADS = 1024
"""Limit for configs from elsewhere, because threads are started as asked for."""


@dataclass(frozen=True)
class Component:
    """A model, data source, split or variant: one of anybit's names, or 'package.module:function', and its arguments."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict, metadata={"rest": True})


@dataclass(frozen=True)
class RangeOptions:
    """Where step sizes come from."""

    weights: RangeRule | None = None
    """Rule for the initial step sizes of weights; none: the variant's (min-max for QAT and APQN, MSE for MQAT)."""
    activations: ActivationRule = "cover"
    """Rule for the step sizes of activations, at the start and when re-estimated for evaluation."""
    evaluate: StepRule | None = None
    """Step rule at evaluation; none: the variant's choice."""
    calibration_images: int = 64
    """Training images on which activation ranges are measured."""
    learned: bool | None = None
    """Train the step sizes (LSQ, learned step size quantization), starting from the rules above; with `follow` those of
    activations, while those of weights follow; none: the variant's choice, false except for carousel where it rounds
    activations and its ranges follow."""
    spread: float = SPREAD
    """c of the rule "rms": a weight's range is ±c root mean squares."""
    follow: bool | None = None
    """Let the step sizes of weights follow their root mean square, Δ_t = Δ_start·rms(w_t)/rms(w_0), in every round; none:
    the variant's choice, true for carousel unless it rounds weights alone and they are learned, false for all others."""
    project: bool | None = None
    """Clip the server's weights to their widest range after every round; none: the variant's choice, false except for
    carousel."""

    def __post_init__(self) -> None:
        check_types(self)
        at_least(1, calibration_images=self.calibration_images)
        positive(spread=self.spread)


@dataclass(frozen=True)
class EvaluationOptions:
    """Rounds and widths at which the server model is evaluated on the whole test set."""

    every: int = 100
    """Rounds between two evaluations."""
    also: tuple[int, ...] = ()
    """Additional rounds after which it is evaluated."""
    bits: tuple[int, ...] = (32, 8, 6, 4, 3, 2)
    """Bit-widths at which it is evaluated."""
    sites: tuple[SiteKinds, ...] = ("W", "A", "WA")
    """Sites of the final evaluation, besides the variant's; earlier ones use the variant's only."""
    steps: tuple[StepRule, ...] = ("table", "rule", "mse")
    """Step rules of the final evaluation."""
    batch_size: int | None = None
    """Test images per batch; none: 250 on a CPU, 2,500 on a GPU, fewer if they do not fit."""
    mixed: bool = False
    """Finally evaluate every pair of bits for weights and activations (W4A8, W2A8, …), by the variant's step rule."""

    def __post_init__(self) -> None:
        check_types(self)
        at_least(1, every=self.every, batch_size=self.batch_size)
        for bits in self.bits:
            check_bits(bits)

    def due(self, round: int) -> bool:
        """Tell if the model is evaluated after this many rounds, beside the last."""
        return round % self.every == 0 or round in self.also


@dataclass(frozen=True)
class ComputeOptions:
    """How engines compute. None: chosen for this machine, and then kept in the run."""

    precision: Precision = "tf32"
    """Precision of products: float32 in a GPU's TF32 units, exact float32, or bfloat16 (autocast, on CPUs too)."""
    compile: bool | None = None
    """Compile the client step on a GPU, which takes minutes with empty caches; none: if the run is long enough, and the
    network large enough, to get them back."""
    chunk: int | None = None
    """Clients that the stacked engine computes at once; fewer need less memory."""
    convolution: Convolution | None = None
    """Kernels on a CPU: torch's (oneDNN), or torch's without oneDNN; with the sequential and processes engines also oneDNN
    with channels last in memory, or native ones for convolutions, norms and pools, which need a C++ compiler once."""
    workers: int | None = None
    """Worker processes of the processes engine; none: one per core."""

    def __post_init__(self) -> None:
        check_types(self)
        at_least(1, **{"compute.chunk": self.chunk, "compute.workers": self.workers})


@dataclass(frozen=True)
class FleetOptions:
    """How the server treats real devices; a run on one machine ignores these settings."""

    deadline: float = 600.0
    """Seconds after which a round goes on without the devices that have not answered."""
    minimum: int | None = None
    """Answers that a round needs; with fewer it is tried again; none: 2, or 1 if a cohort is a single client."""
    tries: int = 3
    """How often a round is tried before the run stops, with a checkpoint."""
    wait: float = 600.0
    """Seconds to wait for enough devices to connect."""
    poll: float = 0.5
    """Seconds between two checks for answers."""
    quarantine: int = 3
    """Rejected or missing answers in a row after which a device is left out for 2 rounds, then 4, 8, …"""
    norm_bound: float | Literal["adaptive", "off"] | None = None
    """Largest L2 norm of a delta, beyond which it is clipped or rejected: a number, adaptive (twice the median of recent
    norms) or off; none: adaptive."""
    norm_rule: Literal["clip", "reject"] = "clip"
    """What happens to a delta beyond `norm_bound`."""
    max_examples: int = 1_000_000
    """Most examples that a device may claim; matters with weighting = "examples"."""
    examples_bound: float = 2.0
    """Most examples that count in the mean, in medians of the cohort; matters with weighting = "examples"."""
    uplink_bits: int = 32
    """Bits in which deltas are sent: 32, or 8 or 4 with stochastic rounding."""
    calibration: Literal["devices", "server"] = "devices"
    """Where activation ranges are measured: on sampled devices, or on the server's training data."""
    calibration_devices: int = 10
    """Devices that measure activation ranges."""

    def __post_init__(self) -> None:
        check_types(self)
        names = ("deadline", "wait", "poll", "quarantine", "minimum", "tries", "max_examples", "calibration_devices",
                 "examples_bound")
        positive(**{name: getattr(self, name) for name in names})
        positive(norm_bound=None if isinstance(self.norm_bound, str) else self.norm_bound)
        if self.uplink_bits not in (4, 8, 32):
            raise ConfigError(f"uplink_bits = {self.uplink_bits}: must be 4, 8 or 32")


@dataclass(frozen=True)
class Config:
    """All settings of a run: the same config on the same machine gives the same bytes."""

    data: Component = Component("digits")
    """Data set, by name, with its arguments."""
    split: Component = Component("dirichlet")
    """Division of the training data among clients."""
    model: Component = Component("resnet20")
    """Network that is trained."""
    variant: Component = Component("mqat")
    """How clients train."""
    rounds: int = 100
    """Number of training rounds."""
    cohort: int | None = None
    """Clients per round; none: 10, or all if there are fewer."""
    sampling: SamplingOptions = SamplingOptions()
    seed: int = 1
    """Seed of every draw: split, initial weights, cohorts, widths, batches."""
    weighting: Literal["uniform", "examples"] = "uniform"
    """Weights in the mean of deltas: equal (the paper's), or in proportion to each client's examples."""
    loss: str = "cross_entropy"
    """Loss that clients minimize, by name or 'module:function'."""
    metric: str = "accuracy"
    """Metric of the evaluations, by name or 'module:function'."""
    output: str | int | None = None
    """Key or position of the model's output, if it returns several; none: "logits", or the only tensor."""
    client: ClientOptions = ClientOptions()
    server: ServerOptions = ServerOptions()
    sites: SiteOptions = SiteOptions()
    ranges: RangeOptions = RangeOptions()
    evaluation: EvaluationOptions = EvaluationOptions()
    engine: EngineName = "auto"
    """How a cohort is computed: one client after another, all in one program, or a process per core; auto: the fastest."""
    compute: ComputeOptions = ComputeOptions()
    device: str = "auto"
    """Device to compute on: cpu, cuda or cuda:1; auto: a GPU if there is one."""
    threads: int | None = None
    """CPU threads; none: torch's choice. Results are the same to the byte only for the same number."""
    checkpoint_every: int = 100
    """Rounds between two checkpoints."""
    fleet: FleetOptions = FleetOptions()
    privacy: PrivacyOptions = PrivacyOptions()

    def __post_init__(self) -> None:
        check_types(self)
        at_least(1, rounds=self.rounds, cohort=self.cohort, checkpoint_every=self.checkpoint_every)
        at_least(0, seed=self.seed)
        if self.threads is not None and not 1 <= self.threads <= MOST_THREADS:
            raise ConfigError(f"threads = {self.threads}: must be between 1 and {MOST_THREADS}")
        if self.sites.first_last_bits is not None:
            check_bits(self.sites.first_last_bits)
        self._check_privacy()

    def _check_privacy(self) -> None:
        """Raise where what one client can change would be unbounded, or told beside the noise."""
        options, wrong = self.privacy, dict[str, str]()
        if options.clip is not None and self.server.mean != "mean":
            wrong[f"server.mean = {self.server.mean}"] = "privacy.clip bounds what a client changes in a mean, and in no " \
                "order statistic; use server.mean=mean"
        if options.private and self.weighting != "uniform":
            wrong[f"weighting = {self.weighting}"] = "the number of a client's examples is private; use weighting=uniform"
        if options.private and self.sampling.policy != "uniform":
            wrong[f"sampling.policy = {self.sampling.policy}"] = "privacy counts on cohorts that are drawn uniformly; use " \
                "sampling.policy=uniform"
        if options.secret and options.private and self.checkpoint_every != 1:
            wrong[f"checkpoint_every = {self.checkpoint_every}"] = "a round that is trained twice with other noise counts " \
                "twice; set checkpoint_every=1 with privacy.secret"
        if wrong:
            raise ConfigError("; ".join(f"{what}: {why}" for what, why in wrong.items()))

    def places(self, clients: int = MOST_PLACES) -> int:
        """Return the size of a cohort among so many clients."""
        return min(MOST_PLACES, clients) if self.cohort is None else self.cohort

    def least(self) -> int:
        """Return the answers that a round of a fleet needs."""
        return self.fleet.minimum or min(2, self.places())


OPEN = {"sites.weight_grid": "full", "sites.activation_grid": "full", "sites.quantize_image": True,
        "ranges.follow": False, "ranges.learned": False, "ranges.project": False,
        "server.schedule": "constant", "server.average": 0.0}
"""Settings that a config may leave open (none), and what they are where the variant has no choice either."""


def chosen(config: Config, choices: Mapping[str, Any]) -> Config:
    """Return the config with the settings that it leaves open as the variant chooses them."""
    both = choices.get("ranges.follow") and choices.get("ranges.learned")
    for setting, value in {**OPEN, **choices}.items():
        if setting not in OPEN:
            raise ConfigError(f"the variant chooses '{setting}', which a config cannot leave open: "
                              f"{did_you_mean(setting, OPEN)}")
        table, _, name = setting.partition(".")
        options = getattr(config, table)
        if getattr(options, name) is None:
            if setting == "ranges.follow" and config.ranges.learned and not both:
                value = False  # learned is asked for, and the step sizes of weights do one of the two
            if setting == "ranges.learned" and both:
                value = config.ranges.follow  # where weights stay in the ranges of the start, so do activations
            try:
                config = replace(config, **{table: replace(options, **{name: value})})
            except ConfigError as error:
                raise ConfigError(f"{table}.{error}") from None
    server = replace(config.server, lr=config.server.rate(config.rounds), warmup=config.server.rise(config.rounds))
    config = replace(config, server=server, client=replace(config.client, batches=config.client.batches or "even"))
    if server.deliver is None:
        steady = server.schedule == "constant" and server.average
        config = replace(config, server=replace(server, deliver="average" if steady else "last"))
    return config


def before_younger_settings(config: Config) -> Config:
    """Return the config of a run, which is settled, with what runs did that are older than a setting."""
    return replace(config, server=replace(config.server, warmup=config.server.warmup or 0),
                   client=replace(config.client, batches=config.client.batches or "full"))


def from_recipe(name: str, overrides: Sequence[str] = ()) -> Config:
    """Read a recipe with `key=value` overrides."""
    content = recipes.load(name, overrides)
    content.pop("description", None)
    config: Config = read(Config, content)
    return config
