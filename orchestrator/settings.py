"""Settings of the orchestrator."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError
from pydantic_settings import SettingsConfigDict

from orchestrator.replicas.addresses import AddressError, Addresses
from specdec.pipelines import PipelineSetting
from specdec.settings import DEFAULT_DRAFT_PORT, DEFAULT_ORCHESTRATOR_PORT, DEFAULT_TARGET_PORT, File, ServiceSettings


def _check_addresses(value: str) -> str:
    try:
        Addresses.parse(value)
    except AddressError as error:
        raise PydanticCustomError("addresses", "{reason}", {"reason": str(error)}) from error
    return value


AddressList = Annotated[str, AfterValidator(_check_addresses)]


class OrchestratorSettings(ServiceSettings):
    """Turns prompts into text: runs the rounds between a draft and a target service. Needs no GPU and no torch."""

    model_config = SettingsConfigDict(env_prefix="SPECDEC_ORCHESTRATOR_")

    port: int = Field(
        DEFAULT_ORCHESTRATOR_PORT, ge=0, le=65535, description="Port to listen on; 0 takes a free one and prints it."
    )
    target: AddressList = Field(
        f"127.0.0.1:{DEFAULT_TARGET_PORT}",
        min_length=1,
        description="gRPC addresses of the target's replicas, with commas between them; dns:///NAME:PORT is one "
        "replica for each address that the name has.",
    )
    draft: AddressList = Field(
        f"127.0.0.1:{DEFAULT_DRAFT_PORT}",
        description="gRPC addresses of the draft service's replicas, as for the target; empty: plain decoding only.",
    )
    resolve_seconds: float = Field(2.0, gt=0, description="How often names are looked up again.")
    silence_seconds: float = Field(
        2.0, ge=1.25, description="A draft or target replica that does not answer pings for so long is given up."
    )
    tls_ca: File = Field(
        None,
        description="PEM file with the authorities of the draft and target services; turns TLS on towards them, with "
        "--tls-cert as this orchestrator's own certificate if there is one.",
    )
    target_tls_name: str = Field(
        "",
        description="Name that the certificates of target services must hold; empty: the host of --target, such as "
        "NAME in dns:///NAME:PORT.",
    )
    draft_tls_name: str = Field("", description="As --target-tls-name, of draft services.")
    shared_secret_file: File = Field(
        None,
        description="File whose first line is sent to draft and target services, to show that an orchestrator calls.",
    )
    insecure_secret: bool = Field(
        False, description="Send the shared secret to other machines without TLS, where others can read it on its way."
    )
    client_ca: File = Field(
        None,
        description="PEM file with the authorities of clients, who must then show a certificate of theirs (mTLS).",
    )
    token_file: File = Field(
        None,
        description="File of the tokens that clients may show, a line each, as `specdec token new` prints it; without "
        "it no token is needed. Read again when it changes.",
    )
    num_draft_tokens: Annotated[int, Field(ge=0, le=256)] | Literal["auto"] = Field(
        "auto",
        description="Draft tokens a round (K) when a request does not say; auto: chosen round by round from measured "
        "acceptance and times, 0 included.",
    )
    pipeline: PipelineSetting = Field(
        "off",
        description="ahead: while a window is verified, the draft service drafts for what is likely to become of it; "
        "candidates: and these drafts go to the target before its verdict, so that it can go straight on; "
        "auto: where that is measured to be worth it.",
    )
    max_new_tokens: int = Field(512, ge=1, description="New tokens of a request that does not say how many.")
    max_concurrent_requests: int = Field(256, ge=1, description="More than this are refused with RESOURCE_EXHAUSTED.")
    round_timeout_seconds: float = Field(
        60.0, gt=0, description="Longest wait for the target's answer in one round before the request fails."
    )
    draft_timeout_seconds: float = Field(
        5.0, gt=0, description="Longest wait for a proposal before the round goes on without one."
    )

    @property
    def _needs_certificate(self) -> str:
        return "" if self.client_ca is None else "--client-ca"
