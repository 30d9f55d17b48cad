"""All messages that cross a process boundary, as plain data without behavior.

The order of a message's fields defines its wire format (msgpack arrays): both ends must run the same version of
ebbtide.
"""

from .base import Finish, Message, Part
from .encoding import EncodedBatch, EncodedItem, EncodeReq, EncoderInfo
from .inspection import Inspection, InspectReq, PageMap, PageMapReq, PageRun, RequestInfo, SessionInfo
from .requests import (
    AbortReq,
    ControlReq,
    FinishReq,
    GenerateReq,
    SamplingParams,
    SessionTurn,
    TextParams,
    UseVocabulary,
)
from .sessions import CloseSessionReq, ListSessionsReq, OpenSessionReq, Reply
from .telemetry import (
    FULL_POOL,
    MAMBA_POOL,
    SWA_POOL,
    Heartbeat,
    PhaseChange,
    PhaseChanges,
    PoolInfo,
    PressureEvent,
    PressureVictim,
    Resumption,
    RunnerInfo,
    Stats,
)
from .tokens import (
    PressureUsage,
    PromptLogprobs,
    StreamStart,
    TextAlternative,
    TextBatch,
    TextItem,
    TextLogprob,
    TokenBatch,
    TokenItem,
    TokenLogprob,
)

ToScheduler = (
    GenerateReq
    | AbortReq
    | FinishReq
    | OpenSessionReq
    | CloseSessionReq
    | ListSessionsReq
    | ControlReq
    | UseVocabulary
    | InspectReq
    | PageMapReq
)
ToDetokenizer = TokenBatch
ToEncoder = EncodeReq | AbortReq
ToEngine = ToScheduler | EncodeReq
ToFront = AbortReq | Stats | Heartbeat | TextBatch | PressureEvent | PhaseChanges | Reply | EncodedBatch
