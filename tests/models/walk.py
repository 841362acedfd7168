# SPDX-License-Identifier: Apache-2.0
"""Walks over every model class of the installed transformers: made tiny, each must answer with heed as it does with eager attention.

python tests/models/walk.py                    # all of them
python tests/models/walk.py --only Bert Llama  # those whose names begin so
python tests/models/walk.py --jobs 8

Each is called plainly, with padding on either side, packed and token by token. Its answer must be as near to eager's in float64 as
eager's own in float32, times 4, or heed refuses it in a sentence. A class is unsure
where eager's own answer is far from float64.
"""

import argparse
import collections
import copy
import dataclasses
import inspect
import logging
import multiprocessing
import os
import re
import sys
import time
import warnings

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers

import heed
import heed.transformers
import tiny

FACTOR, ROUNDINGS = 4, 32
COARSE = 0.01  # a bound beyond this, of the largest number, tells nothing

# Classes that are compared with transformers' sdpa attention in place of eager, by the beginning of their names, and why.
EXCEPTIONS = {
    "SeamlessM4Tv2": "the chunks of its speech encoder are a mask of booleans, which its eager attention adds to the scores as ones and zeros",
}


@dataclasses.dataclass
class Outcome:
    """What became of a class: per way of calling it "equal", "refused: ...", "unsure: ..." or "WRONG: ..."; or why there was nothing to compare."""

    name: str
    ways: dict[str, str] = dataclasses.field(default_factory=dict)
    not_built: str = ""
    calls: int = 0  # of heed's attention
    seconds: float = 0.0

    @property
    def kind(self):
        if self.not_built:
            return "not built"
        if any(answer.startswith("WRONG") for answer in self.ways.values()):
            return "WRONG"
        for kind in ("refused", "unsure"):
            if any(answer.startswith(kind) for answer in self.ways.values()):
                return kind
        return "equal" if self.calls else "equal, heed not asked"


def line(error):
    text = " ".join(str(error).split()) or type(error).__name__
    return f"{type(error).__name__}: {text}"[:200]


def tensors_of(answer, found=None):
    """The floating point tensors of an answer, in order."""
    found = [] if found is None else found
    if isinstance(answer, torch.Tensor):
        if answer.is_floating_point():
            found.append(answer)
    elif isinstance(answer, dict):
        for name, value in answer.items():
            if name not in ("past_key_values", "attentions", "cross_attentions", "decoder_attentions", "encoder_attentions"):
                tensors_of(value, found)
    elif isinstance(answer, (list, tuple)):
        for value in answer:
            tensors_of(value, found)
    return found


def doubled(arguments):
    return {
        name: value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value for name, value in arguments.items()
    }


def relative(x, z):
    """The largest difference, over the largest number."""
    return ((x - z).abs().max() / z.abs().max().clamp(min=1e-30)).item()


def farther(ours, eager, judge, is_token):
    """What is said if ours is farther from the judge than the bound, or the bound says nothing; None if it is near. Eager's distance is the largest of all its outputs."""
    ours, eager, judge = tensors_of(ours), tensors_of(eager), tensors_of(judge)
    if [x.shape for x in ours] != [x.shape for x in eager]:
        return f"WRONG: shapes {[tuple(x.shape) for x in ours][:4]} in place of {[tuple(x.shape) for x in eager][:4]}"
    errors, allowed = [], ROUNDINGS * torch.finfo(torch.float32).eps
    for x, y, z in zip(ours, eager, judge, strict=True):
        if is_token is not None and x.shape[:2] == is_token.shape:
            x, y, z = x[is_token], y[is_token], z[is_token]  # noqa: PLW2901
        x, y, z = x.double(), y.double(), z.double()  # noqa: PLW2901
        counts = z.isfinite() & y.isfinite() & (z.abs() < 1e30)
        if counts.any():
            x = x.nan_to_num(torch.inf)  # noqa: PLW2901
            errors.append(relative(x[counts], z[counts]))
            allowed = max(allowed, FACTOR * relative(y[counts], z[counts]))
    worst = max(errors, default=0.0)
    if allowed > COARSE:
        return f"unsure: eager itself is {allowed / FACTOR:.3g} from float64"
    return f"WRONG: {worst:.3g} from float64 where {allowed:.3g} is allowed, of the largest number" if worst > allowed else None


def ways_of(model, arguments):
    """name -> (arguments, which tokens count, whether it generates)."""
    accepted = inspect.signature(model.forward).parameters
    ways = {"plain": (arguments, None, False)}
    ids = arguments.get("input_ids")
    if ids is not None and "attention_mask" in accepted:
        for side in ("left", "right"):
            mask = torch.ones_like(ids)
            mask[0, ..., slice(0, 4) if side == "left" else slice(-4, None)] = 0
            more = {"attention_mask": mask}
            if "position_ids" in accepted and side == "left":
                more["position_ids"] = (mask.cumsum(-1) - 1).clamp(min=0)
            ways[f"padded {side}"] = ({**arguments, **more}, mask.bool(), False)
        if "position_ids" in accepted and set(arguments) == {"input_ids"} and ids.ndim == 2:
            packed = torch.cat([torch.arange(4), torch.arange(ids.shape[1] - 4)])[None]
            way = {"input_ids": ids[:1], "position_ids": packed}
            if "use_cache" in accepted or model.can_generate():
                way["use_cache"] = False
            ways["packed"] = (way, None, False)
    if model.can_generate():
        ways["cached"] = (arguments, None, True)
    return ways


def answer_of(model, arguments, generates):
    torch.manual_seed(5)  # some models draw numbers as they compute
    with torch.no_grad():
        if not generates:
            return model(**arguments)
        said = model.generate(
            **arguments, max_new_tokens=4, min_new_tokens=4, do_sample=False, return_dict_in_generate=True, output_logits=True, use_cache=True
        )
        return said.logits


def call_counter():
    """Counts calls of heed's attention from here on."""
    counted = collections.Counter()
    original = heed.transformers.attend

    def attend(*args, **kwargs):
        counted["calls"] += 1
        return original(*args, **kwargs)

    transformers.AttentionInterface.register("heed", attend)
    return counted


def walk_over(name):
    """Builds one class, calls it in every way and compares."""
    begin = time.process_time()
    outcome = Outcome(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            compare(name, outcome)
        except Exception as error:  # noqa: BLE001
            outcome.not_built = outcome.not_built or line(error)
    outcome.seconds = time.process_time() - begin
    return outcome


def compare(name, outcome):
    model_class = getattr(transformers, name)
    arguments, errors = None, []
    for layers in (2, 6):  # models of several kinds of layers may have none of one kind among the first
        config = tiny.tiny_config(model_class, layers)
        eager = tiny.build(model_class, config, "sdpa" if name.startswith(tuple(EXCEPTIONS)) else "eager")
        for way in tiny.ways_to_call(eager):
            try:
                if tensors_of(answer_of(eager, way, False)):
                    arguments = way
                    break
            except Exception as error:  # noqa: BLE001
                errors.append(line(error))
        if arguments is not None:
            break
    else:
        outcome.not_built = "no inputs: " + (errors[0] if errors else "nothing known by the names of forward's arguments")
        return
    judge = copy.deepcopy(eager).double()
    counted = call_counter()
    try:
        ours = tiny.build(model_class, config, "heed")
    except heed.Error as error:
        outcome.ways["made"] = f"refused: {line(error)}"
        return
    except Exception as error:  # noqa: BLE001
        outcome.ways["made"] = f"WRONG: {line(error)}"
        return
    ours.load_state_dict(eager.state_dict())
    for way, (call, is_token, generates) in ways_of(eager, arguments).items():
        try:
            theirs = answer_of(eager, call, generates)
        except Exception as error:  # noqa: BLE001
            if way == "plain":
                raise
            continue  # the model itself does not take this
        try:
            said = answer_of(ours, call, generates)
        except (heed.Error, heed.KindError) as error:
            outcome.ways[way] = f"refused: {line(error)}"
            continue
        except Exception as error:  # noqa: BLE001
            outcome.ways[way] = f"WRONG: {line(error)}"
            continue
        try:
            exact = answer_of(judge, doubled(call), generates)
        except Exception:  # noqa: BLE001  models that ask for float32 somewhere
            exact = theirs
        outcome.ways[way] = farther(said, theirs, exact, is_token) or "equal"
    outcome.calls = counted["calls"]


def prepare():
    torch.set_num_threads(1)
    heed.set_num_threads(1)
    logging.disable(logging.CRITICAL)
    heed.transformers.register("heed")


def names_to_walk(only):
    return [name for name in tiny.model_classes() if not only or any(name.startswith(beginning) for beginning in only)]


def walk(names, jobs=1):
    """The outcome of each class; what was set for it is set back."""
    threads = torch.get_num_threads(), heed.get_num_threads()
    prepare()
    try:
        if jobs == 1:
            yield from map(walk_over, names)
        else:
            with multiprocessing.get_context("fork").Pool(jobs, initializer=prepare, maxtasksperchild=20) as pool:
                yield from pool.imap_unordered(walk_over, names)
    finally:
        heed.transformers.register("heed")
        logging.disable(logging.NOTSET)
        torch.set_num_threads(threads[0])
        heed.set_num_threads(threads[1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--verbose", action="store_true", help="print equal ones and why others could not be built")
    options = parser.parse_args()
    outcomes = []
    for outcome in walk(names_to_walk(options.only), options.jobs):
        outcomes.append(outcome)
        if outcome.kind in ("WRONG", "refused", "unsure") or options.verbose:
            print(f"{outcome.kind:12} {outcome.name} {outcome.seconds:.1f} s {outcome.not_built}", flush=True)
            for way, answer in outcome.ways.items():
                if answer != "equal" or options.verbose:
                    print(f"             {way}: {answer}", flush=True)
    kinds = collections.Counter(outcome.kind for outcome in outcomes)
    reasons = collections.Counter(re.sub(r"\d+", "N", outcome.not_built)[:70] for outcome in outcomes if outcome.not_built)
    for reason, count in reasons.most_common(25):
        print(f"not built: {count:4}  {reason}")
    print(f"transformers {transformers.__version__}: {len(outcomes)} classes; " + ", ".join(f"{n} {k}" for k, n in sorted(kinds.items())))
    print(f"{sum(outcome.seconds for outcome in outcomes):.0f} processor seconds")
    return 1 if kinds["WRONG"] else 0


if __name__ == "__main__":
    sys.exit(main())
