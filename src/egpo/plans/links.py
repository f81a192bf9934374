"""The assumptions of a plan for many GPUs, and the seconds of collectives between the GPUs that follow from them."""

from dataclasses import dataclass, fields, replace

from egpo.errors import InputError, nearest

NODE = 8
"""Most GPUs per node that share fast links. A recipe with more GPUs per node is planned as several nodes of eight."""


@dataclass(frozen=True)
class Assumptions:
    """The numbers of a plan that were not measured on the machine it is for. `egpo plan --assume NAME=VALUE` sets them.

    Rates of links are bytes per second and GPU, in one direction.
    """

    node_gpus: int = NODE
    """GPUs of a node. A recipe of several nodes sets it by `verl.gpus`, if that is below eight."""
    node_bytes_per_s: float = 450e9
    """Link between GPUs of a node: NVLink 4, as the vendor states it."""
    network_bytes_per_s: float = 50e9
    """Link between nodes: 400 Gbit/s for each GPU."""
    host_bytes_per_s: float = 64e9
    """Link between a GPU and the memory of its host: PCIe 5, as the vendor states it."""
    link_share: float = 0.8
    """Fraction of a link's rate that a large collective reaches."""
    hop_s: float = 4e-6
    """Seconds of one hop in a ring of GPUs."""
    reduce_s: float = 15e-6
    """Seconds of one small all-reduce within a node, as in each layer of a token with tensor parallelism."""
    overlap: float = 0.8
    """Fraction of the shorter of computing and communicating that is hidden behind the longer one, in FSDP."""
    rollout_factor: float = 1.6
    """Seconds of vLLM for each second of the embedded sampler: 1.4 to 1.8 on one H200."""
    shared_prompts: float = 0
    """1: the responses of a group share the prompt in a pass, as in the embedded engine. 0: each row has its own."""
    padding: float = 1.0
    """Tokens of a pass, with padding, for each real token: 1 with flash-attn or `egpo_packed`."""
    overhead_s: float = 12.0
    """Seconds of a step beside its work: Ray, waiting, sleep, wake. egpo-tiny on one H200 took 11 to 14 s in all."""
    log_probs: float = 1
    """Passes for log-probabilities before the update, beside the reference's."""
    base_bytes: float = 4
    """Bytes of each frozen weight in verl's shards, of a reference or under adapters: verl loads float32
    (`fsdp_config.model_dtype`). 0: trainer and sampler share the weights, which stay on the GPU in the precision of
    computing, as those of a reference do: as in the embedded engine."""

    @property
    def shares_weights(self) -> bool:
        return self.base_bytes == 0

    @property
    def host_rate(self) -> float:
        """The rate between a GPU and its host's memory that a large copy reaches, in bytes per second."""
        return self.link_share * self.host_bytes_per_s

    def link(self, group: int, gpus: int | None = None) -> float:
        """Return the rate of a ring over `group` consecutive GPUs, in bytes per second: that of its slowest link.

        `gpus`: if they are divided into several such groups, their number. Groups that do not divide the node then
        extend over the end of a node.
        """
        among = gpus or group
        inside = among <= self.node_gpus or (group <= self.node_gpus and self.node_gpus % group == 0)
        return self.link_share * (self.node_bytes_per_s if inside else self.network_bytes_per_s)


LIKE_EMBEDDED = Assumptions(rollout_factor=1.0, shared_prompts=1, overhead_s=0.0, log_probs=0, base_bytes=0)
"""With one GPU, the plan under these assumptions is that of the embedded engine."""
LINKS = {"a100": (300e9, 25e9, 32e9), "rtx4090": (25e9, 12.5e9, 32e9)}
"""Rates of other GPUs' links where they differ, within a node, between nodes, and to the host: NVLink 3, 200 Gbit/s
and PCIe 4; PCIe 4, 100 Gbit/s and PCIe 4."""

_USUAL_LINKS = (Assumptions.node_bytes_per_s, Assumptions.network_bytes_per_s, Assumptions.host_bytes_per_s)
_RATES = ("node_bytes_per_s", "network_bytes_per_s", "host_bytes_per_s")
_POSITIVE = (*_RATES, "link_share", "node_gpus", "rollout_factor", "padding")


def assumptions_for(card: str, given: dict[str, float], node_gpus: int = NODE) -> Assumptions:
    """Return the assumptions for a GPU and nodes of `node_gpus`, with those that the user sets."""
    node, network, host = LINKS.get(card, _USUAL_LINKS)
    names = {field.name for field in fields(Assumptions)}
    for name, value in given.items():
        if name not in names:
            raise InputError(f"no assumption is called `{name}`", where="--assume", fix=nearest(name, names))
        if value < 0 or (name in _POSITIVE and value == 0) or (name in ("link_share", "overlap") and value > 1):
            fix = "give a positive number; fractions are at most 1"
            raise InputError(f"`{name}` cannot be {value:g}", where="--assume", fix=fix)
    numbers = {name: int(value) if name == "node_gpus" else value for name, value in given.items()}
    usual = Assumptions(node_gpus, node, network, host)
    return replace(usual, **numbers)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Mesh:
    """How FSDP2 uses the GPUs: groups of `shards` consecutive GPUs divide all weights among them.

    Each group is one of `replicas`, which hold the same. verl's `fsdp_size` is the number of shards.
    """

    gpus: int
    shards: int

    @property
    def replicas(self) -> int:
        return self.gpus // self.shards


def gather_s(bytes_whole: float, units: int, mesh: Mesh, assumed: Assumptions) -> float:
    """Return the seconds of gathering (or reducing and scattering) shards of so many bytes, in `units` collectives."""
    shards = mesh.shards
    if shards == 1:
        return 0.0
    return bytes_whole * (shards - 1) / shards / assumed.link(shards, mesh.gpus) + units * (shards - 1) * assumed.hop_s


def all_reduce_s(bytes_whole: float, units: int, mesh: Mesh, assumed: Assumptions) -> float:
    """Return the seconds of adding the shards of all replicas, in `units` rings: half of the bytes are those of a sum
    that is scattered, half those of gathering it. `bytes_whole` is what one replica holds on all of its GPUs."""
    replicas = mesh.replicas
    if replicas == 1:
        return 0.0
    moved = 2 * (replicas - 1) / replicas * bytes_whole / mesh.shards
    # The GPUs of a ring are `shards` apart, so that it passes every node.
    return moved / assumed.link(mesh.gpus) + units * 2 * (replicas - 1) * assumed.hop_s


def overlapped_s(compute_s: float, links_s: float, assumed: Assumptions) -> float:
    """Return the seconds of computing and communicating of which the shorter is partly hidden behind the longer."""
    return max(compute_s, links_s) + (1 - assumed.overlap) * min(compute_s, links_s)
