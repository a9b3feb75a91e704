"""What a replica can be asked to do, by name. Each verb takes the replica's context and plain arguments."""

from __future__ import annotations

from typing import Any, Callable, Dict

from .attention import attention
from .census import autopsy, census
from .clock import arms, block, growth, loop, settle
from .compiled import compiled
from .context import Context
from .energy import energy
from .families import families
from .formats import formats
from .interventions import check
from .inventory import inventory
from .lock import lock
from .outputs import outputs, quality
from .profile import profile
from .roofs import roofs
from .rounding import rounding
from .serve import serve
from .support import support
from .truth import truth

Verb = Callable[[Context, Dict[str, Any]], Dict[str, Any]]

VERBS: Dict[str, Verb] = {
    "lock": lock,
    "inventory": inventory,
    "census": census,
    "autopsy": autopsy,
    "profile": profile,
    "settle": settle,
    "block": block,
    "arms": arms,
    "loop": loop,
    "growth": growth,
    "outputs": outputs,
    "quality": quality,
    "check": check,
    "support": support,
    "truth": truth,
    "rounding": rounding,
    "compiled": compiled,
    "attention": attention,
    "families": families,
    "roofs": roofs,
    "formats": formats,
    "serve": serve,
    "energy": energy,
}
