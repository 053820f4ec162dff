"""Settings of a process: one class gives the flags, the environment variables, the defaults and their documentation."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final, Literal, NoReturn, TypeVar

from pydantic import AfterValidator, BeforeValidator, ByteSize, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError
from pydantic_settings import BaseSettings, CliApp, SettingsConfigDict, SettingsError
from typing_extensions import Self

from specdec.engine.leases import LEASE_SECONDS
from specdec.processors import parse_cpus

DEFAULT_MODEL = "smollm2-135m-instruct"
DEFAULT_DRAFT_MODEL = f"{DEFAULT_MODEL}-draft"
DEFAULT_DRAFTER: Final = "combined"
DEFAULT_DRAFTER_WITHOUT_MODEL: Final = "suffix"
"""Where the target is not the embedded one, whose draft model is the default, and no draft model is named."""
DEFAULT_ORCHESTRATOR_PORT = 50050
DEFAULT_DRAFT_PORT = 50051
DEFAULT_TARGET_PORT = 50052

LinearKernel = Literal["auto", "default", "invariant"]


def _check_cpus(value: str) -> str:
    if value:
        try:
            parse_cpus(value)
        except ValueError as error:
            raise PydanticCustomError("cpus", "{reason}", {"reason": str(error)}) from error
    return value


CpuList = Annotated[str, AfterValidator(_check_cpus)]
"""Such as 0,2-5; empty: all."""
File = Annotated[Path | None, BeforeValidator(lambda value: value or None)]
"""Empty is none, as in an environment variable that is set to nothing."""


class ServiceSettings(BaseSettings):
    """What every service can be told. A flag wins over its environment variable, and that over the default."""

    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(0, ge=0, le=65535, description="Port to listen on; 0 takes a free one and prints it.")
    health_port: Annotated[int, Field(ge=0, le=65535)] | None = Field(
        None,
        description="A further port that answers health checks only, in plaintext, for probes without a certificate.",
    )
    metrics_port: Annotated[int, Field(ge=0, le=65535)] | None = Field(
        None, description="A further port that serves /metrics for Prometheus, in plaintext; 0 takes a free one."
    )
    tls_cert: File = Field(
        None, description="PEM file with the certificate to show, and those between it and its authority; turns TLS on."
    )
    tls_key: File = Field(None, description="PEM file with the key of --tls-cert.")
    tls_ca: File = Field(
        None, description="PEM file with the authorities of callers, who must then show a certificate of theirs (mTLS)."
    )
    insecure_bind: bool = Field(
        False, description="Listen where other machines can call although TLS or the check of who calls is missing."
    )
    reflection: bool = Field(False, description="Tell callers the protos, by gRPC reflection.")
    drain_seconds: float = Field(
        20.0, ge=0, description="After SIGTERM, how long running requests may go on before they are cut."
    )
    log_format: Literal["text", "json"] = Field("text", description="Lines for people, or one JSON object a line.")
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="Least severe line to log.")

    @property
    def _needs_certificate(self) -> str:
        """A flag that is given and means nothing without --tls-cert; empty: none is."""
        return "" if self.tls_ca is None else "--tls-ca"

    @model_validator(mode="after")
    def _check_tls(self) -> Self:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise PydanticCustomError("tls", "--tls-cert and --tls-key go together; give both or neither")
        if self.tls_cert is None and self._needs_certificate:
            message = "{flag} checks certificates of callers, which needs --tls-cert and --tls-key"
            raise PydanticCustomError("tls", message, {"flag": self._needs_certificate})
        return self


class ModelServiceSettings(ServiceSettings):
    """What the draft and the target service have in common."""

    allowed_peers: str = Field(
        "",
        description="Names, separated by commas, of which a caller's certificate must hold one; empty: any that "
        "--tls-ca vouches for.",
    )
    shared_secret_file: File = Field(
        None, description="File with secrets, one a line; a caller must send one of them. Read again when it changes."
    )
    model: str = Field(
        DEFAULT_MODEL, description="Embedded model name, Hugging Face id, directory, or path of a GGUF file."
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16", "int4"] = Field(
        "auto",
        description="Element type of the weights; auto is float32 on CPU and bfloat16 on CUDA, and on CPU packed, in 4 "
        "or 8 bits, for trained drafts. int4, on CPU, keeps the weights of a GGUF file of type Q4_0 or Q4_1 packed and "
        "multiplies in bfloat16.",
    )
    device: str = Field(
        "auto",
        description="cpu, cuda, cuda:N, or auto (CUDA if there is one). Several, such as cuda:0,cuda:1, share out the "
        "layers of a model that is too large for one.",
    )
    num_threads: int = Field(
        0, ge=0, description="Threads of a forward pass on CPU; 0: one a core, within the quota of the cgroup."
    )
    cpu_affinity: CpuList = Field("", description="CPUs to run on, such as 0,2-5; empty: all that the process may use.")
    linear_kernel: LinearKernel = Field(
        "auto",
        description="Products on CPU. auto: the fastest for each number of rows, as measured once on this machine, "
        "with a second copy of weights where that pays and a quarter of the free memory holds it; default: PyTorch's; "
        "invariant: a row gives the same bits in any batch.",
    )
    max_context_length: int = Field(
        0, ge=0, description="Longest sequence served, in tokens; 0 is the model's own limit."
    )
    max_num_sequences: int = Field(256, ge=1, description="Most sequences open at once.")
    lease_seconds: float = Field(
        LEASE_SECONDS,
        gt=0,
        description="A sequence that nothing is asked of for so long is closed; its orchestrator may open it again.",
    )
    max_num_draft_tokens: int = Field(32, ge=1, le=256, description="Largest window of a round, in draft tokens.")
    max_batch_rows: int = Field(
        512, ge=1, description="Most rows (tokens) of one forward pass; longer prompts take several."
    )
    prefill_chunk_rows: int = Field(
        0,
        ge=0,
        description="Most rows of prefill in a pass beside running sequences; 0: until it lasts twice as long.",
    )
    kv_cache_memory: ByteSize = Field(
        ByteSize(0), description="Memory for keys and values, such as 8GiB; 0: --kv-cache-share of what is free."
    )
    kv_cache_share: float = Field(
        0.0,
        ge=0,
        le=1,
        description="Share of the memory that is free once the model is loaded; 0: 0.8 of a GPU's, 0.3 of a machine's.",
    )
    kv_overcommit: float = Field(
        1.5,
        ge=1,
        description="Tokens that may be promised to sequences, as a multiple of those that fit; above 1 a sequence may "
        "lose its cache and be prefilled again.",
    )

    @model_validator(mode="after")
    def _check_allowed_peers(self) -> Self:
        if self.allowed_peers and self.tls_ca is None:
            raise PydanticCustomError("peers", "--allowed-peers are names in certificates, which needs --tls-ca")
        return self


Settings = TypeVar("Settings", bound=BaseSettings)


def load_settings(settings_class: type[Settings], arguments: Sequence[str] | None = None, *, program: str) -> Settings:
    """Read flags and environment. A malformed value ends the process with status 2 and names the flag and the variable.

    Args:
        settings_class: its `model_config` holds the prefix of its environment variables.
        arguments: command line without the program's name; None reads `sys.argv`.
        program: name shown in usage and errors.
    """
    configured = type(
        settings_class.__name__,
        (settings_class,),
        {
            "__doc__": settings_class.__doc__,
            "__module__": settings_class.__module__,
            "model_config": SettingsConfigDict(
                cli_prog_name=program, cli_kebab_case=True, cli_hide_none_type=True, cli_implicit_flags=True
            ),
        },
    )
    try:
        return CliApp.run(configured, cli_args=list(sys.argv[1:] if arguments is None else arguments))
    except ValidationError as error:
        prefix = settings_class.model_config.get("env_prefix", "")
        lines = []
        for problem in error.errors(include_url=False, include_input=False):
            name = str(problem["loc"][0]) if problem["loc"] else ""
            where = f"--{name.replace('_', '-')} / {prefix}{name.upper()}: " if name else ""
            lines.append(f"{where}{problem['msg']}")
        _exit(program, lines)
    except SettingsError as error:
        _exit(program, [str(error)])


def _exit(program: str, lines: list[str]) -> NoReturn:
    sys.stderr.write("".join(f"{program}: {line}\n" for line in lines))
    raise SystemExit(2)
