import asyncio
import json
import signal
import socket
from typing import Any

import pytest

from specdec.v1 import generation_pb2, model_pb2, sampling_pb2
from tests.specdec.cli.conftest import Cli, Server
from tests.specdec.fake_generation import ALL_TOKEN_IDS, FULL_TEXT


async def test_it_prints_the_text_and_nothing_else(cli: Cli, server: Server) -> None:
    ended = await cli.run("generate", "hello", "--server", server.address)
    assert (ended.status, ended.out, ended.err) == (0, FULL_TEXT + "\n", "")


async def test_it_goes_on_at_the_next_server(cli: Cli, server: Server) -> None:
    ended = await cli.run("generate", "hello", "--server", f"127.0.0.1:1,{server.address}")
    assert (ended.status, ended.out) == (0, FULL_TEXT + "\n")


async def test_a_server_without_an_address_is_refused(cli: Cli) -> None:
    ended = await cli.run("generate", "hello", "--server", " , ")
    assert ended.status == 2


async def test_only_what_was_given_is_set(cli: Cli, server: Server) -> None:
    await cli.run("generate", "hello", "--server", server.address)
    expected = generation_pb2.GenerateRequest(sampling=sampling_pb2.SamplingParams())
    expected.chat.messages.add(role="user", content="hello")
    assert server.generation.requests == [expected]


async def test_every_option_reaches_the_request(cli: Cli, server: Server) -> None:
    sampling = "--temperature 0 --top-k 3 --top-p 0.5 --min-p 0.1 --repetition-penalty 1.1 --frequency-penalty 0.2"
    more = "--presence-penalty -0.3 --seed 18446744073709551615 --ignore-eos --logprobs 2 --max-new-tokens 7"
    rest = "--num-draft-tokens 0 --acceptance-rule block --stop END --raw --server"
    newer = "--typical-p 0.9 --no-repeat-ngram-size 3 --min-new-tokens 2 --logit-bias 198=-5 --logit-bias 3=0.5"
    lists = "--tenant Zoë --allow-token 1 --allow-token 2 --ban-token 4 --stop-token 6 --num-completions 1"
    flags = f"{newer} {lists} {sampling} {more} {rest}".split()
    ended = await cli.run("generate", "two words", *flags, server.address, "--stop", "a b")
    assert ended.status == 0
    assert server.generation.requests == [
        generation_pb2.GenerateRequest(
            text="two words",
            sampling=sampling_pb2.SamplingParams(
                temperature=0,
                top_k=3,
                top_p=0.5,
                min_p=0.1,
                repetition_penalty=1.1,
                frequency_penalty=0.2,
                presence_penalty=-0.3,
                seed=2**64 - 1,
                ignore_eos=True,
                num_logprobs=2,
                typical_p=0.9,
                no_repeat_ngram_size=3,
                min_new_tokens=2,
                logit_bias={198: -5, 3: 0.5},
                allowed_token_ids=[1, 2],
                banned_token_ids=[4],
                stop_token_ids=[6],
            ),
            num_completions=1,
            tenant="Zoë",
            max_new_tokens=7,
            stop_strings=["END", "a b"],
            num_draft_tokens=0,
            acceptance_rule=model_pb2.ACCEPTANCE_RULE_BLOCK,
        )
    ]
    assert "-0.5000" in ended.out


async def test_the_prompt_can_come_from_standard_input_and_a_system_message_before_it(cli: Cli, server: Server) -> None:
    ended = await cli.run("generate", "-", "--system", "be brief", "--server", server.address, stdin="é\nb\n".encode())
    assert ended.status == 0
    messages = server.generation.requests[0].chat.messages
    assert [(message.role, message.content) for message in messages] == [("system", "be brief"), ("user", "é\nb\n")]


async def test_json_is_exactly_one_object(cli: Cli, server: Server) -> None:
    ended = await cli.run("generate", "hello", "--json", "--rounds", "--logprobs", "1", "--server", server.address)
    assert (ended.status, ended.err) == (0, "")
    result: dict[str, Any] = json.loads(ended.out)
    assert result["text"] == FULL_TEXT
    assert result["token_ids"] == ALL_TOKEN_IDS
    assert result["finish_reason"] == "length"
    assert result["usage"] == {"num_prompt_tokens": 3, "num_generated_tokens": 6, "num_cached_tokens": 0}
    assert result["stats"]["acceptance_rate"] == 0.4
    assert result["stats"]["num_fallback_rounds"] == 0
    assert result["seed"] == 2**63 + 1
    assert [entry["round"] for entry in result["rounds"]] == [0, 1, 2, 3]
    assert [entry["next_token_kind"] for entry in result["rounds"]] == ["bonus", "bonus", "recovered", "bonus"]
    assert result["rounds"][1]["verify"]["compute_microseconds"] == 5000
    assert result["logprobs"][0]["top_token_ids"] == [5, 3]


async def test_several_completions_follow_each_other(cli: Cli, server: Server) -> None:
    flags = ["--num-completions", "2", "--server", server.address]
    ended = await cli.run("generate", "hello", *flags)
    assert (ended.status, ended.err) == (0, "")
    assert ended.out == f"── completion 0 ──\n{FULL_TEXT}\n── completion 1 ──\n{FULL_TEXT}\n"
    result = json.loads((await cli.run("generate", "hello", "--json", *flags)).out)
    assert [completion["text"] for completion in result["completions"]] == [FULL_TEXT] * 2
    assert result["token_ids"] == ALL_TOKEN_IDS
    # The second has its final message, and the first has not.
    ended = await cli.run("generate", "cut", *flags)
    assert ended.status == 1


async def test_rounds_are_a_table_after_the_text(cli: Cli, server: Server) -> None:
    ended = await cli.run("generate", "hello", "--rounds", "--server", server.address)
    text, *table = ended.out.splitlines()
    assert text == FULL_TEXT
    rows = [line.split() for line in table if line.strip()[:1].isdigit()]
    assert [row[:6] for row in rows[:4]] == [
        ["0", "0", "0", "–", "prefill", "1"],
        ["1", "2", "2", "suffix", "bonus", "3"],
        ["2", "3", "0", "suffix", "recovered", "1"],
        ["3", "0", "0", "–", "bonus", "1"],
    ]
    assert "mean acceptance length 1.67 (bonus counted)" in ended.out
    assert "\x1b" not in ended.out


@pytest.mark.parametrize("flags", [[], ["--json"]])
async def test_a_refusal_is_one_line_with_its_code(cli: Cli, server: Server, flags: list[str]) -> None:
    ended = await cli.run("generate", "refuse", "--server", server.address, *flags)
    assert ended.status == 1
    assert ended.out == ""
    assert ended.err == "specdec generate: RESOURCE_EXHAUSTED: too many requests; try again later\n"


async def test_a_failure_in_the_middle_keeps_the_text_and_says_so(cli: Cli, server: Server) -> None:
    ended = await cli.run("generate", "break", "--server", server.address)
    assert (ended.status, ended.out) == (1, "Hel\n")
    assert ended.err == "specdec generate: UNAVAILABLE: the target service is gone\n"
    ended = await cli.run("generate", "break", "--json", "--server", server.address)
    assert (ended.status, ended.out) == (1, "")


async def test_a_stream_without_its_final_message_is_a_failure(cli: Cli, server: Server) -> None:
    ended = await cli.run("generate", "cut", "--server", server.address)
    assert (ended.status, ended.out) == (1, FULL_TEXT + "\n")
    assert ended.err.startswith("specdec generate: the stream ended without its final message")


async def test_a_server_that_is_not_there_is_a_failure(cli: Cli) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    ended = await cli.run("generate", "hello", "--server", f"127.0.0.1:{port}")
    assert ended.status == 1
    assert ended.err.startswith("specdec generate: UNAVAILABLE: ")
    assert len(ended.err.splitlines()) == 1


@pytest.mark.parametrize("flags", [[], ["--json"]])
async def test_ctrl_c_cancels_and_prints_what_there_was(cli: Cli, server: Server, flags: list[str]) -> None:
    process = await cli.start("generate", "hang", "--server", server.address, *flags)
    for _ in range(400):
        if server.generation.requests:
            break
        await asyncio.sleep(0.025)
    await asyncio.sleep(0.3)
    process.send_signal(signal.SIGINT)
    ended = await cli.end(process)
    assert ended.status == 130
    await asyncio.wait_for(server.generation.cancelled.wait(), 10)
    if flags:
        result = json.loads(ended.out)
        assert (result["text"], result["finish_reason"]) == ("Hel", None)
    else:
        assert (ended.out, ended.err) == ("Hel\n", "")


@pytest.mark.parametrize(
    "flags",
    [
        ["--temperature", "-1"],
        ["--top-p", "0"],
        ["--num-draft-tokens", "many"],
        ["--num-draft-tokens", "-1"],
        ["--max-new-tokens", "0"],
        ["--stop", ""],
        [flag for index in range(17) for flag in ("--stop", str(index))],
        ["--logprobs", "21"],
        ["--logit-bias", "198"],
        ["--logit-bias", "-1=2"],
        ["--ban-token", "4294967296"],
        ["--num-completions", "17"],
        ["--raw", "--system", "s"],
        ["--model", "m"],
        ["--acceptance-rule", "none"],
        ["--nonsense"],
    ],
)
async def test_bad_usage_is_status_2_and_never_asks_the_server(cli: Cli, server: Server, flags: list[str]) -> None:
    ended = await cli.run("generate", "hello", "--server", server.address, *flags)
    assert ended.status == 2
    assert ended.out == ""
    assert "Error" in ended.err
    assert server.generation.requests == []


async def test_a_prompt_that_is_no_text_is_bad_usage(cli: Cli, server: Server) -> None:
    ended = await cli.run("generate", "-", "--server", server.address, stdin=b"\xff\xfe")
    assert ended.status == 2
    assert "UTF-8" in ended.err


async def test_a_local_server_that_is_ready_is_used(cli: Cli, server: Server) -> None:
    cli.environment["SPECDEC_ORCHESTRATOR_PORT"] = server.address.rpartition(":")[2]
    ended = await cli.run("generate", "hello")
    assert (ended.status, ended.out, ended.err) == (0, FULL_TEXT + "\n", "")
    assert len(server.generation.requests) == 1


async def test_services_of_its_own_that_are_asked_for_come_before_a_local_server(cli: Cli, server: Server) -> None:
    cli.environment["SPECDEC_ORCHESTRATOR_PORT"] = server.address.rpartition(":")[2]
    ended = await cli.run("generate", "hello", "--drafter", "none")
    assert (ended.status, ended.out) == (0, FULL_TEXT + "\n")
    assert server.generation.requests == []


async def test_without_a_server_it_starts_services_for_the_request(cli: Cli) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        cli.environment["SPECDEC_ORCHESTRATOR_PORT"] = str(taken.getsockname()[1])
    ended = await cli.run("generate", "hello")
    assert (ended.status, ended.out) == (0, FULL_TEXT + "\n")
    (notice,) = ended.err.splitlines()
    assert "starting services here" in notice
    assert "combined" in notice


async def test_services_that_do_not_start_are_a_failure(cli: Cli) -> None:
    cli.environment["FAKE_TARGET"] = "fail"
    ended = await cli.run("generate", "hello", "--drafter", "ngram")
    assert (ended.status, ended.out) == (1, "")
    assert "specdec generate: target ended with status 3" in ended.err
    assert "cannot load the model" in ended.err


async def test_ctrl_c_while_services_start_ends_them(cli: Cli) -> None:
    cli.environment["FAKE_TARGET"] = "starting"
    process = await cli.start("generate", "hello", "--drafter", "ngram")
    await asyncio.sleep(2)
    process.send_signal(signal.SIGINT)
    ended = await cli.end(process)
    assert (ended.status, ended.out) == (130, "")
