"""A client as a process: opens a stream, says so when the first message came, and goes on reading."""

import asyncio
import sys

from specdec.serving.channel import open_channel
from specdec.v1 import generation_pb2, generation_pb2_grpc
from tests.specdec.serving.toy_service import MAX_MESSAGE_BYTES


async def read(address: str) -> None:
    async with open_channel(address, max_message_bytes=MAX_MESSAGE_BYTES) as channel:
        stub = generation_pb2_grpc.GenerationServiceStub(channel)
        async for _ in stub.Generate(generation_pb2.GenerateRequest()):
            sys.stderr.write("received\n")


if __name__ == "__main__":
    asyncio.run(read(sys.argv[1]))
