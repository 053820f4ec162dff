"""A whole service process, from its settings to its exit status."""

import asyncio
import gc
import logging
import os
import signal
import threading
from collections.abc import Callable

from specdec.errors import Refusal
from specdec.logs import configure_logs
from specdec.serving.binding import BindError
from specdec.serving.host import CLOSE_SECONDS, Service, ServiceHost
from specdec.serving.metrics_port import MetricsPort
from specdec.serving.security_error import SecurityError
from specdec.serving.server_security import ServerSecurity
from specdec.serving.service_security import basic_security
from specdec.settings import ServiceSettings
from specdec.telemetry.setup import Telemetry, setup_telemetry
from specdec.telemetry.variables import TelemetrySettingError

logger = logging.getLogger(__name__)

FLUSH_SECONDS = 5.0
"""Bound on handing the last spans and metrics to the collector."""
EXIT_SECONDS = 5.0
"""Bound on what is left after that: threads that still compute end with the process."""
_COLLECTION_OBJECTS = 10_000
"""New objects after which the garbage collector looks among them; by default 700, which every forward pass makes."""


def run(
    make_service: Callable[[], Service],
    settings: ServiceSettings,
    *,
    name: str,
    expected_errors: tuple[type[Exception], ...] = (),
    make_security: Callable[[], ServerSecurity] | None = None,
) -> int:
    """Serve until SIGTERM or SIGINT and return the exit status, with which the caller must end the process.

    The first signal drains for at most `settings.drain_seconds`, a second one kills at once. Status 0: stopped in
    order. 1: could not start, or failed; the log says why, in one line for a refusal or one of `expected_errors`.
    2: a telemetry variable is malformed.

    Args:
        make_service: called inside the event loop.
        settings: where to listen, how to log, how long to drain.
        name: "draft", "target" or "orchestrator"; in log lines, and in traces as specdec-NAME.
        expected_errors: what `Service.start` may raise, besides refusals, with a message for the operator.
        make_security: reads the certificates and secrets that the settings name; by default certificates only.
    """
    configure_logs(settings.log_format, settings.log_level, service=name)
    try:
        telemetry = setup_telemetry(f"specdec-{name}", has_metrics_port=settings.metrics_port is not None)
    except TelemetrySettingError as error:
        logger.error("%s", error)  # noqa: TRY400
        return 2
    make_security = make_security or (lambda: basic_security(settings, settings.tls_ca))
    expected_errors = (Refusal, BindError, SecurityError, *expected_errors)
    return asyncio.run(_run(make_service, make_security, settings, telemetry, expected_errors))


async def _run(
    make_service: Callable[[], Service],
    make_security: Callable[[], ServerSecurity],
    settings: ServiceSettings,
    telemetry: Telemetry,
    expected_errors: tuple[type[Exception], ...],
) -> int:
    status = 1
    try:
        security = make_security()
        security.check_exposure(settings.host)
        await _serve(make_service, security, settings, _stop_signal())
        status = 0
    except expected_errors as error:
        logger.error("cannot start: %s", error)  # noqa: TRY400
    except Exception:
        logger.exception("failed")
    telemetry.shutdown(FLUSH_SECONDS)
    last_resort = threading.Timer(EXIT_SECONDS, os._exit, (status,))
    last_resort.daemon = True
    last_resort.start()
    return status


async def _serve(
    make_service: Callable[[], Service], security: ServerSecurity, settings: ServiceSettings, stop: asyncio.Event
) -> None:
    host = ServiceHost(
        make_service(),
        host=settings.host,
        port=settings.port,
        drain_seconds=settings.drain_seconds,
        security=security,
    )
    stop_requested = asyncio.create_task(stop.wait())
    metrics_port = MetricsPort()
    try:
        await host.listen()
        if settings.metrics_port is not None:
            metrics_port.listen(settings.host, settings.metrics_port)
            logger.info("serving metrics on %s", metrics_port.address)
        if missing := security.missing(settings.host):
            logger.warning("whoever reaches %s can use or overhear this service: %s", host.address, missing)
        logger.info("listening on %s", host.address)
        if security.health_port is not None:
            logger.info("answering health checks on %s", host.health_address)
        start = asyncio.create_task(host.start())
        await asyncio.wait({start, stop_requested}, return_when=asyncio.FIRST_COMPLETED)
        if start.done():
            await start
            _spare_what_stays()
            await stop_requested
        else:
            start.cancel()
            await asyncio.wait({start}, timeout=CLOSE_SECONDS)
        logger.info("stopping")
    finally:
        stop_requested.cancel()
        await host.stop()
        await asyncio.to_thread(metrics_port.close)
    logger.info("stopped")


def _spare_what_stays() -> None:
    """Let the garbage collector pass over what is there for good, modules and the model, and work less often.

    To go over all of it takes a quarter of a second with a model loaded, in which nothing else is done, and comes every
    few hundred forward passes. What is dropped without a cycle, which is nearly everything, needs no collector.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_COLLECTION_OBJECTS, *gc.get_threshold()[1:])
    logger.debug("the garbage collector passes over %d objects from now on", gc.get_freeze_count())


def _stop_signal() -> asyncio.Event:
    """Set by the first SIGTERM or SIGINT. A second one finds the default disposition and kills even a stuck process."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()

    def on_signal() -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    return stop
