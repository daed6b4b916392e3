"""`motet generate` says what `LLM` says."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from motet import LLM, SamplingParams
from tests.cli.conftest import SMALL, Done, RunCommand

PROMPT = "What is the question?"


@pytest.fixture(scope="module")
def llm(llama: Path) -> LLM:
    return LLM(str(llama), num_blocks_override=64, threads=1)


def greedy(**changes: Any) -> SamplingParams:
    return SamplingParams(temperature=0, **{"max_tokens": 20, "ignore_eos": True, **changes})


GREEDY = ("--temperature", "0", "--max-tokens", "20", "--ignore-eos")


def chat_text(llm: LLM, text: str, params: SamplingParams, **options: Any) -> str:
    return llm.chat([{"role": "user", "content": text}], params, **options)[0].outputs[0].text


class TestOnePrompt:
    def test_it_is_a_users_message(self, motet: RunCommand, model: tuple[str, ...], llm: LLM) -> None:
        done = motet("generate", PROMPT, *model, *GREEDY)
        assert done.status == 0
        assert done.out.removesuffix("\n") == chat_text(llm, PROMPT, greedy()).removesuffix("\n")

    def test_raw_continues_the_text(self, motet: RunCommand, model: tuple[str, ...], llm: LLM) -> None:
        out = motet("generate", PROMPT, *model, *GREEDY, "--raw").out
        assert out.removesuffix("\n") == llm.generate(PROMPT, greedy())[0].outputs[0].text.removesuffix("\n")
        assert out != motet("generate", PROMPT, *model, *GREEDY).out

    def test_system_message_and_template(
        self, motet: RunCommand, model: tuple[str, ...], llm: LLM, tmp_path: Path
    ) -> None:
        template = tmp_path / "own.jinja"
        template.write_text("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}")
        words = ("--system", "Be brief.", "--chat-template", str(template))
        out = motet("generate", PROMPT, *model, *GREEDY, *words).out
        whole = f"system: Be brief.\nuser: {PROMPT}\n"
        assert out.removesuffix("\n") == llm.generate(whole, greedy())[0].outputs[0].text.removesuffix("\n")

    def test_summary_goes_to_stderr_and_quiet_leaves_it_out(self, motet: RunCommand, model: tuple[str, ...]) -> None:
        done = motet("generate", PROMPT, *model, *GREEDY)
        assert done.err.startswith("20 tokens at ")
        assert "tokens/s" in done.err
        assert done.err.endswith("cut at the token limit\n")
        assert motet("generate", PROMPT, *model, *GREEDY, "--quiet").err == ""

    def test_prompt_from_standard_input(
        self, motet: RunCommand, model: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        expected = motet("generate", PROMPT, *model, *GREEDY).out
        monkeypatch.setattr("sys.stdin", io.StringIO(PROMPT))
        assert motet("generate", "-", *model, *GREEDY).out == expected

    def test_several_answers(self, motet: RunCommand, model: tuple[str, ...]) -> None:
        done = motet("generate", PROMPT, *model, "--n", "3", "--max-tokens", "4", "--temperature", "2", "--seed", "1")
        assert [number in done.out for number in ("[1] ", "[2] ", "[3] ", "[4] ")] == [True, True, True, False]
        assert done.err.startswith("12 tokens")

    def test_the_same_command_gives_the_same_answer(self, motet: RunCommand, model: tuple[str, ...]) -> None:
        words = ("generate", PROMPT, *model, "--max-tokens", "30", "--ignore-eos", "--temperature", "1.5")
        assert motet(*words).out == motet(*words).out
        assert motet(*words, "--seed", "1").out == motet(*words, "--seed", "1").out
        assert motet(*words, "--seed", "1").out != motet(*words, "--seed", "2").out

    def test_streamed_pieces_never_split_a_character(self, motet: RunCommand, model: tuple[str, ...], llm: LLM) -> None:
        words = ("--temperature", "3", "--seed", "5", "--max-tokens", "200", "--ignore-eos")
        out = motet("generate", PROMPT, *model, *words, "--top-p", "1").out
        params = SamplingParams(temperature=3, seed=5, max_tokens=200, ignore_eos=True, top_p=1)
        assert out.removesuffix("\n") == chat_text(llm, PROMPT, params).removesuffix("\n")

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (("",), "the prompt is empty"),
            (("x", "--raw", "--system", "y"), "a system message needs a chat template"),
            (("x " * 500,), "context length is 256"),
            (("x", "--stop-token-ids", "512"), "512 is outside the vocabulary"),
            (("x", "--skip-tokenizer-init"), "skip_tokenizer_init"),
        ],
    )
    def test_errors(self, motet: RunCommand, model: tuple[str, ...], words: tuple[str, ...], message: str) -> None:
        done = motet("generate", *words, *model)
        assert (done.status, done.out) == (1, "")
        assert message in done.err
        assert done.err.count("\n") == 1


def run_lines(motet: RunCommand, folder: Path, lines: list[Any], *words: str) -> Done:
    source = folder / "prompts.jsonl"
    source.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return motet("generate", "--input", str(source), *words)


class TestFile:
    def test_every_kind_of_line(self, motet: RunCommand, model: tuple[str, ...], llm: LLM, tmp_path: Path) -> None:
        ids = [5, 6, 300, 7]
        messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
        lines = [
            '"Hello"',
            {"prompt": "Hello", "id": 7},
            {"prompt_token_ids": ids},
            "",
            {"messages": messages, "id": "m"},
        ]
        done = run_lines(motet, tmp_path, lines, *model, *GREEDY)
        assert done.status == 0
        hello = chat_text(llm, "Hello", greedy())
        expected = [
            hello,
            hello,
            llm.generate({"prompt_token_ids": ids}, greedy())[0].outputs[0].text,
            llm.chat(messages, greedy())[0].outputs[0].text,
        ]
        assert [line["text"] for line in done.lines] == expected
        assert [line.get("id") for line in done.lines] == [None, 7, None, "m"]
        assert {line["finish_reason"] for line in done.lines} == {"length"}
        assert done.lines[2]["usage"] == {
            "prompt_tokens": 4,
            "completion_tokens": 20,
            "total_tokens": 24,
            "cached_tokens": 0,
        }

    def test_order_is_kept_when_answers_overtake_each_other(
        self, motet: RunCommand, model: tuple[str, ...], tmp_path: Path
    ) -> None:
        lengths = [60, 1, 40, 2, 20, 3, 1, 1, 30, 5, 1, 2]
        lines = [{"prompt": "Hi", "max_tokens": length, "id": i} for i, length in enumerate(lengths)]
        done = run_lines(motet, tmp_path, lines, *model, *GREEDY, "--max-num-seqs", "2")
        assert [line["id"] for line in done.lines] == list(range(len(lengths)))
        assert [line["usage"]["completion_tokens"] for line in done.lines] == lengths

    def test_parameters_of_a_line_win(
        self, motet: RunCommand, model: tuple[str, ...], llm: LLM, tmp_path: Path
    ) -> None:
        lines = [{"prompt": "Hi", "max_tokens": 3}, {"prompt": "Hi"}, {"prompt": "Hi", "temperature": 2.0, "seed": 4}]
        done = run_lines(motet, tmp_path, lines, *model, *GREEDY, "--token-ids")
        sampled = llm.chat([{"role": "user", "content": "Hi"}], greedy().clone(temperature=2.0, seed=4))
        assert [len(line["token_ids"]) for line in done.lines] == [3, 20, 20]
        assert done.lines[2]["token_ids"] == sampled[0].outputs[0].token_ids

    def test_logprobs(self, motet: RunCommand, model: tuple[str, ...], llm: LLM, tmp_path: Path) -> None:
        lines = [{"prompt_token_ids": [5, 6], "prompt_logprobs": 0, "logprobs": 2, "max_tokens": 2}]
        (line,) = run_lines(motet, tmp_path, lines, *model, *GREEDY).lines
        expected = llm.generate([5, 6], greedy(max_tokens=2, logprobs=2, prompt_logprobs=0))[0]
        assert expected.outputs[0].logprobs is not None
        assert [{int(k): v["logprob"] for k, v in entry.items()} for entry in line["logprobs"]] == [
            {k: v.logprob for k, v in entry.items()} for entry in expected.outputs[0].logprobs
        ]
        assert line["prompt_logprobs"][0] is None
        assert list(line["prompt_logprobs"][1]) == ["6"]

    def test_several_answers_per_line(self, motet: RunCommand, model: tuple[str, ...], tmp_path: Path) -> None:
        lines = [{"prompt": "Hi", "n": 2, "temperature": 2.0, "max_tokens": 3}]
        (line,) = run_lines(motet, tmp_path, lines, *model, "--ignore-eos").lines
        assert len(line["outputs"]) == 2
        assert line["usage"]["completion_tokens"] == 6

    def test_a_stop_string_is_told(self, motet: RunCommand, model: tuple[str, ...], llm: LLM, tmp_path: Path) -> None:
        text = chat_text(llm, "Hi", greedy())
        stop = text[3:6]
        (line,) = run_lines(motet, tmp_path, [{"prompt": "Hi", "stop": stop}], *model, *GREEDY).lines
        assert (line["finish_reason"], line["stop_reason"]) == ("stop", stop)
        assert line["text"] == text[: text.index(stop)]

    def test_a_bad_line_does_not_touch_the_others(
        self, motet: RunCommand, model: tuple[str, ...], tmp_path: Path
    ) -> None:
        bad = {
            "nonsense": "line 2: not JSON",
            '{"id": 3, "prompt": "x", "max_token": 3}': "unknown key 'max_token'; did you mean 'max_tokens'?",
            '{"prompt": "x", "max_tokens": "many"}': "max_tokens",
            '{"prompt": "x", "temperature": -1}': "temperature must be",
            '{"prompt": ""}': "the prompt is empty",
            '{"prompt": 5}': "prompt must be text",
            '{"prompt": "x", "messages": []}': "needs one of prompt, prompt_token_ids, messages",
            "{}": "needs one of",
            "[1]": "must be a JSON string or object",
            '{"prompt_token_ids": [512]}': "512 is outside the vocabulary",
            '{"prompt_token_ids": "abc"}': "must be a list of ints",
            '{"prompt_token_ids": [], "max_tokens": 1}': "no tokens",
            '{"messages": "hi"}': "messages must be a list",
            '{"messages": [{"content": "x"}]}': "role",
            json.dumps({"prompt": "x " * 900}): "context length",
            '{"prompt": "\\ud800"}': "Unicode",
        }
        lines = ['"first"', *bad, '"last"']
        done = run_lines(motet, tmp_path, lines, *model, *GREEDY)
        assert done.status == 1
        alone = run_lines(motet, tmp_path, ['"first"', '"last"'], *model, *GREEDY)
        assert [done.lines[0]["text"], done.lines[-1]["text"]] == [line["text"] for line in alone.lines]
        for line, message in zip(done.lines[1:-1], bad.values(), strict=True):
            assert message in line["error"]
            assert "text" not in line
        assert done.lines[2]["id"] == 3
        assert f"{len(bad)} of {len(lines)} prompts failed" in done.err

    def test_output_file_and_summary(self, motet: RunCommand, model: tuple[str, ...], tmp_path: Path) -> None:
        target = tmp_path / "out.jsonl"
        done = run_lines(motet, tmp_path, ['"Hällo"'], *model, *GREEDY, "--output", str(target))
        assert (done.status, done.out) == (0, "")
        assert done.err.startswith("1 prompts in ")
        (line,) = map(json.loads, target.read_text(encoding="utf-8").splitlines())
        assert line["finish_reason"] == "length"
        assert run_lines(motet, tmp_path, ['"x"'], *model, *GREEDY, "--output", str(target), "--quiet").err == ""

    def test_token_ids_only(self, motet: RunCommand, llama: Path, tmp_path: Path) -> None:
        words = ("--model", str(llama), *SMALL, *GREEDY, "--skip-tokenizer-init")
        done = run_lines(motet, tmp_path, [{"prompt_token_ids": [5, 6]}, '"text"'], *words)
        assert len(done.lines[0]["token_ids"]) == 20
        assert "skip_tokenizer_init" in done.lines[1]["error"]

    def test_files_are_checked_before_anything_is_loaded(self, motet: RunCommand, tmp_path: Path) -> None:
        source = tmp_path / "in.jsonl"
        source.write_text('"x"\n')
        empty = tmp_path / "empty.jsonl"
        empty.write_text("\n\n")
        for words, message in (
            ((str(source), "--output", str(source)), "is the input file"),
            ((str(source), "--output", str(tmp_path)), "it is a folder"),
            ((str(source), "--output", str(tmp_path / "no" / "out")), "no such folder"),
            ((str(empty),), "has no lines"),
        ):
            done = motet("generate", "--model", "no such model", "--input", *words)
            assert done.status == 1
            assert message in done.err
        assert source.read_text() == '"x"\n'


def test_json_keys_of_logit_bias_are_token_ids() -> None:
    from motet.cli.prompts import with_changes
    from motet.core.params import SamplingParams

    params = with_changes(SamplingParams(logit_bias={3: 1.0}), {"top_k": 5})
    assert with_changes(params, {"logit_bias": {"7": -2}}).logit_bias == {7: -2.0}
    assert params.logit_bias == {3: 1.0}
