# SPDX-License-Identifier: Apache-2.0
"""What `heed bench` prints and refuses. Nothing here depends on how fast the machine is."""

import csv
import io
import json
import re
import signal
import subprocess
import time

import pytest

from tool import TOOL, environment, heed, json_of, on_a_terminal

pytestmark = pytest.mark.skipif(not TOOL, reason="HEED_TOOL does not name the tool")

SHORT = ["bench", "--seconds", "0.001", "--skip-limits"]
DECODE = "decode/bf16/1x32x1x1x4096x128"
NAME = re.compile(
    r"(prefill|decode|backward|layer)/(f32|f16|bf16)/\d+(x\d+){5}(/causal|/bias|/keep)?|projection/(f32|bf16)/\d+x\d+x\d+"
    r"|cache/(f32|f16|bf16|int8)/\d+(x\d+){5}(/paged64|/mixed)?|step/f32/\d+(x\d+){5}"
)


def names(folder, *arguments):
    return [case["name"] for case in json_of(folder, "bench", "--list", *arguments)["cases"]]


@pytest.fixture(scope="module", name="limits")
def measured_limits(tmp_path_factory):
    return json_of(tmp_path_factory.mktemp("limits"), "bench", "--suite", "limits", "--threads", 2)


def test_limits_name_every_rate_for_one_thread_and_for_all(limits):
    assert set(limits["limits"]) == {
        "fp32_flops", "bf16_flops", "int8_ops", "l2_bytes_per_second", "l3_bytes_per_second", "dram_bytes_per_second",
    }  # fmt: skip
    for name, rate in limits["limits"].items():
        if rate is None:
            assert name not in ("fp32_flops", "dram_bytes_per_second")
            continue
        assert rate["one_thread"] > 0 and rate["all_threads"] > 0, name
        assert ("instruction" in rate) == (not name.endswith("bytes_per_second")), name


def test_the_machine_is_described(limits):
    assert limits["machine"]["threads"] == 2 and limits["machine"]["name"]
    assert limits["machine"]["memory_bytes"] > 0
    assert limits["command"] == "heed bench --suite limits --threads 2 --seconds 1"
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", limits["date"]) and limits["versions"]["heed"]
    assert limits["cases"] == []


@pytest.mark.parametrize(
    "name, unit",
    [(DECODE, "bytes_per_second")]
    + [(f"prefill/f32/1x12x12x1024x1024x64/{between}", "flops") for between in ("causal", "bias", "keep")],
)
def test_a_case_has_a_kernel_a_check_and_a_rate(tmp_path, name, unit):
    answer = json_of(tmp_path, *SHORT, "--suite", "all", "--filter", f"^{name}$")
    (case,) = answer["cases"]
    assert answer["limits"] is None and case["share_of_limit"] is case["best_share_of_limit"] is None
    assert case["turns"] == 0
    assert case["name"] == name and case["right"] is True
    assert case["how"] in json_of(tmp_path, "doctor")["kernels"]
    assert case["checked_elements"] > 0 and 0 <= case["error_in_bounds"] <= 1
    assert case["runs"] >= 1 and 0 < case["min_seconds"] <= case["median_seconds"]
    assert [key for key in ("flops", "bytes_per_second") if key in case] == [unit] and case[unit] > 0


def test_a_share_is_the_rate_over_the_limit_that_binds(tmp_path):
    answer = json_of(tmp_path, "bench", "--suite", "decode", "--filter", f"^{DECODE}$", "--seconds", "0.001")
    (case,) = answer["cases"]
    limit = answer["limits"][f"{case['limit']}_bytes_per_second"]["all_threads"]
    assert case["share_of_limit"] == pytest.approx(case["bytes_per_second"] / limit, rel=1e-12)
    assert case["share_of_first_limit"] == case["share_of_limit"]
    assert case["turns"] == 0 and case["best_share_of_limit"] >= case["share_of_limit"]
    # 2 tensors, 4096 keys, 128 dimensions, 2 bytes: each byte once, although 32 heads read it
    assert case["bytes_per_second"] * case["median_seconds"] == pytest.approx(2 * 4096 * 128 * 2, rel=1e-9)


def test_a_share_of_arithmetic_is_measured_in_turns_with_the_limit(tmp_path):
    name = "prefill/f32/1x12x12x1024x1024x64/causal"
    answer = json_of(tmp_path, "bench", "--suite", "prefill", "--filter", f"^{name}$", "--seconds", "0.001")
    (case,) = answer["cases"]
    assert case["limit"] == "fp32" and case["turns"] >= 1
    assert case["share_of_limit"] > 0 and case["best_share_of_limit"] > 0
    assert case["share_of_first_limit"] == pytest.approx(case["flops"] / answer["limits"]["fp32_flops"]["all_threads"], rel=1e-12)


def test_a_cache_counts_the_bytes_it_keeps_and_a_step_its_weights_too(tmp_path):
    (case,) = json_of(tmp_path, *SHORT, "--suite", "decode", "--filter", "^cache/int8/64x.*/mixed$")["cases"]
    assert case["right"] is True and case["how"] in json_of(tmp_path, "doctor")["kernels"]
    assert case["kv_bytes_per_token"] == 8 * (2 * 128 + 2 * 4)  # one byte an element, two scales a head
    moved = case["bytes_per_second"] * case["median_seconds"]
    assert moved == pytest.approx(32768 * case["kv_bytes_per_token"], rel=1e-9)
    steps = json_of(tmp_path, *SHORT, "--suite", "decode", "--filter", "^step/")["cases"]
    assert [step["kv_bytes_per_token"] for step in steps] == [2 * heads * 128 * 4 for heads in [16, 4, 1]]
    for step, heads in zip(steps, [16, 4, 1]):
        weights = 4 * 2048 * (2048 + 2 * heads * 128 + 2048)
        moved = step["bytes_per_second"] * step["median_seconds"]
        assert step["right"] is True
        assert moved == pytest.approx(weights + 8192 * step["kv_bytes_per_token"], rel=1e-9)


def test_a_backward_pass_is_checked_and_counts_two_and_a_half_times_the_forward_pass(tmp_path):
    name = "backward/f32/1x12x12x1024x1024x64"
    (case,) = json_of(tmp_path, *SHORT, "--suite", "backward", "--filter", f"^{name}$")["cases"]
    assert case["right"] is True and case["how"].startswith("cpu.backward.") and case["checked_elements"] > 10000
    forward = 4 * 12 * 1024 * 1024 * 64
    assert case["flops"] * case["median_seconds"] == pytest.approx(2.5 * forward, rel=1e-9)


def test_a_layer_counts_its_projections_and_its_attention(tmp_path):
    name = "layer/f32/2x12x6x1024x1024x64"
    (case,) = json_of(tmp_path, *SHORT, "--suite", "layer", "--filter", f"^{name}$")["cases"]
    projections = 2 * 2048 * 768 * (768 + 384 + 384 + 768)
    attention = 4 * 2 * 12 * 1024 * 1024 * 64
    assert case["flops"] * case["median_seconds"] == pytest.approx(projections + attention, rel=1e-9)


def test_a_projection_of_one_row_counts_its_weights(tmp_path):
    (case,) = json_of(tmp_path, *SHORT, "--suite", "layer", "--filter", "^projection/f32/1x")["cases"]
    assert case["how"] is None
    assert case["bytes_per_second"] * case["median_seconds"] == pytest.approx(4096 * 4096 * 4, rel=1e-9)


OWN = "prefill/f32/1x2x1x70x70x24/causal"


def test_a_case_may_have_any_shape_and_says_its_tokens_a_second_and_how_they_vary(tmp_path):
    names = [OWN, "cache/int8/3x4x2x2x40x16/paged16", "backward/bf16/1x2x2x33x33x16", "step/f32/1x2x1x1x20x16", "projection/f32/24x48x48"]
    answer = json_of(tmp_path, *SHORT, "--case", ",".join(names))
    assert [case["name"] for case in answer["cases"]] == names and "--case " + ",".join(names) in answer["command"]
    for case, tokens in zip(answer["cases"], [70, 6, 33, 1, 24]):
        assert case["right"] is True
        assert case["tokens_per_second"] * case["median_seconds"] == pytest.approx(tokens, rel=1e-9), case["name"]
        assert case["standard_deviation_seconds"] >= 0 and (case["runs"] < 2 or case["standard_deviation_seconds"] > 0)


def test_csv_has_a_field_for_every_number_and_markdown_a_table(tmp_path):
    lines = list(csv.DictReader(io.StringIO(heed(tmp_path, *SHORT, "--case", OWN, "--csv").stdout)))
    assert len(lines) == 1 and lines[0]["name"] == OWN and lines[0]["right"] == "true" and lines[0]["share_of_limit"] == ""
    assert float(lines[0]["tokens_per_second"]) * float(lines[0]["median_seconds"]) == pytest.approx(70, rel=1e-9)
    assert lines[0]["machine"] == json_of(tmp_path, "doctor")["cpu"] and None not in lines[0]
    head, sides, row = heed(tmp_path, *SHORT, "--case", OWN, "--markdown").stdout.splitlines()[:3]
    assert head.count("|") == sides.count("|") == row.count("|") and row.startswith(f"| {OWN} | cpu.")
    assert set(sides) <= set("|-: ")


def test_a_saved_run_is_compared_with_case_by_case(tmp_path):
    saved = json_of(tmp_path, *SHORT, "--case", OWN)
    saved["cases"][0]["median_seconds"] = 1000.0
    (tmp_path / "saved.json").write_text(json.dumps(saved))
    words = [*SHORT, "--case", f"{OWN},{OWN.replace('x70', 'x71')}", "--compare", "saved.json"]
    same, other = json_of(tmp_path, *words)["cases"]
    assert same["saved_median_seconds"] == 1000 and "saved_median_seconds" not in other
    head, _, row, row_of_other = heed(tmp_path, *words, "--markdown").stdout.splitlines()[:4]
    assert head.endswith("to saved |") and float(row.split("|")[-2].split()[0]) > 100 and row_of_other.endswith("|  |")


def test_every_case_has_a_name_of_its_own_that_says_what_it_is(tmp_path):
    found = names(tmp_path, "--suite", "all")
    assert len(set(found)) == len(found)
    assert [name for name in found if not NAME.fullmatch(name)] == []


def test_suites_hold_what_they_promise(tmp_path):
    heads = names(tmp_path)
    assert len(heads) == 6 and all("/f32/2x12x" in name for name in heads)
    assert names(tmp_path, "--suite", "heads") == names(tmp_path, "--suite", "seeds") == heads
    assert {name.split("/")[0] for name in names(tmp_path, "--suite", "prefill")} == {"prefill"}
    decode = names(tmp_path, "--suite", "decode")
    assert {name.split("/")[0] for name in decode} == {"decode", "cache", "step"}
    for stored in ["f32", "bf16", "f16", "int8"]:
        one = f"cache/{stored}/1x32x8x1x32768x128"
        assert {one, f"{one}/paged64", f"cache/{stored}/64x32x8x1x512x128/mixed"} <= set(decode)
    assert {name.split("/")[0] for name in names(tmp_path, "--suite", "layer")} == {"layer", "projection"}
    assert {name.split("/")[0] for name in names(tmp_path, "--suite", "backward")} == {"backward"}
    assert len(names(tmp_path, "--suite", "lengths")) == 14


def test_quick_shortens_the_long_prefill_only(tmp_path):
    full, quick = (set(names(tmp_path, "--suite", "all", *extra)) for extra in ([], ["--quick"]))
    assert {name.replace("x4096x4096x", "x2048x2048x") for name in full} == quick
    assert full != quick


def test_a_filter_is_a_regular_expression_that_may_match_anywhere(tmp_path):
    everything = names(tmp_path, "--suite", "all")
    found = names(tmp_path, "--suite", "all", "--filter", "bf16/.*causal$")
    assert found == [name for name in everything if re.search("bf16/.*causal$", name)] != []


THREE = "^decode/f32/1x(32x8|8x8|32x1)x1x4096x128$"


def interrupted_bench(tmp_path, *words, after):
    """(status, stdout, stderr) of three cases that are interrupted once after(process) has returned."""
    command = [TOOL, "bench", "--suite", "decode", "--filter", THREE, "--skip-limits", *words]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=tmp_path, env=environment(), **pipes) as process:
        shown = after(process)
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=120)
    return process.returncode, shown + rest, errors


def test_a_row_is_there_when_its_case_is_done_and_ctrl_c_leaves_what_there_is(tmp_path):
    def after_a_row(process):
        shown = ""
        while "decode/f32/" not in shown and (line := process.stdout.readline()):
            shown += line
        return shown

    status, shown, errors = interrupted_bench(tmp_path, "--seconds", "2", after=after_a_row)
    assert (status, errors) == (130, "")
    (done,) = re.findall(r"Interrupted after ([12]) of 3 cases[.]", shown)
    assert shown.count("decode/f32/") == int(done)


def test_ctrl_c_leaves_one_object_with_json(tmp_path):
    def after_a_while(process):
        time.sleep(2)
        return ""

    status, shown, errors = interrupted_bench(tmp_path, "--seconds", "5", "--json", after=after_a_while)
    answer = json.loads(shown)
    assert (status, errors) == (130, "") and len(answer["cases"]) == answer["interrupted_after"] < 3


def test_progress_counts_the_cases_and_says_how_long(tmp_path):
    _, progress = on_a_terminal(tmp_path, *SHORT, "--suite", "decode", "--filter", THREE)
    assert "1 of 3: decode/" in progress and re.search(r"2 of 3, about \d+ s left: decode/", progress)


def test_people_get_a_table_and_quiet_gets_nothing(tmp_path):
    words = [*SHORT, "--suite", "decode", "--filter", f"^{DECODE}$"]
    shown = heed(tmp_path, *words)
    assert shown.returncode == 0 and shown.stderr == ""
    assert DECODE in shown.stdout and "GB/s" in shown.stdout
    quiet = heed(tmp_path, *words, "--quiet")
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (0, "", "")


def test_ranks_have_the_bits_of_one_process_and_say_what_they_did(tmp_path):
    answer = json_of(tmp_path, "bench", "--suite", "ranks", "--quick")
    assert (answer["tokens"], answer["kept_tokens"]) == (2048, 8192)
    for row in answer["prefill"] + answer["decode"]:
        assert row["has_the_bits"] and 0 < row["computing_seconds"] and 0 < row["efficiency"]
        assert row["predicted_seconds"] >= row["one_process_seconds"] > 0
        assert row["waiting_seconds"] <= row["seconds"]
    assert [row["ranks"] for row in answer["prefill"]] == [row["ranks"] for row in answer["decode"]] == [1, 2, 4, 8]
    one, two = answer["prefill"][:2]
    words = 16  # what a rank says of its call
    assert one["received_bytes"] == 0 and two["received_bytes"] == 2 * 8 * 1024 * 64 * 4 + words
    state = (64 + 2) * 4  # of one row and head
    states, merged = 8 // 2 * 8 // 2 * state, 8 // 2 * state  # half the chunks of half the heads, and the other half of the heads
    assert answer["decode"][1]["received_bytes"] == states + merged + words


@pytest.mark.parametrize(
    "flags, sentence",
    [
        (["--filter", "("], "--filter: '(' is not a regular expression"),
        (["--filter", "^nothing$"], "--filter: '^nothing$' matches no case; --list shows them"),
        (["--case", "prefill/f32/1x2x2x8x8"], "--case: 'prefill/f32/1x2x2x8x8' is no case; say ROLE/TYPE/BATCHxHEADSxKV_HEADSxQUERIESxKEYSxDIM, such as prefill/bf16/1x32x8x2048x2048x128/causal"),
        (["--case", "projection/f32/8x16x32"], "--case: 'projection/f32/8x16x32' is no case; say ROLE/TYPE/BATCHxHEADSxKV_HEADSxQUERIESxKEYSxDIM, such as prefill/bf16/1x32x8x2048x2048x128/causal"),
        (["--case", "prefill/f32/1x8x3x64x64x16"], "--case: 'prefill/f32/1x8x3x64x64x16': 3 KV heads do not divide 8 heads"),
        (["--case", "prefill/f32/1x8x2x64x65x16"], "--case: 'prefill/f32/1x8x2x64x65x16': prefill has as many queries as keys"),
        (["--case", "decode/f32/1x8x2x2x65x16"], "--case: 'decode/f32/1x8x2x2x65x16': decode has one query"),
        (["--case", "layer/f32/1x8x2x64x64x16/causal"], "--case: 'layer/f32/1x8x2x64x64x16/causal': layer has no mask or bias of that kind"),
        (["--case", DECODE, "--suite", "decode"], "--suite: means nothing beside --case"),
        (["--csv", "--markdown"], "--csv: means nothing beside --markdown"),
        (["--suite", "ranks", "--csv"], "--csv: means nothing beside --suite ranks"),
        (["--compare", "none.json"], "--compare: 'none.json' cannot be read"),
        (["--compare", "/dev/null"], "--compare: '/dev/null' is not what heed bench --json prints"),
        (["--seconds", "0"], "--seconds: 0 is not in (0, 3600]"),
        (["--seconds", "nan"], "--seconds: nan is not in (0, 3600]"),
        (["--threads", "0"], "--threads: 0 is outside [1, 4096]"),
        (["--suite", "ranks", "--ranks", "4294967298"], "--ranks: 4294967298 is outside [1, 4096]"),
        (["--suite", "fast"], "--suite: 'fast' is not heads, prefill, decode, layer, backward, lengths, all, limits or ranks"),
    ],
)
def test_bad_usage_is_refused_in_a_sentence(tmp_path, flags, sentence):
    ended = heed(tmp_path, "bench", *flags)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == f"heed: {sentence}\n"
