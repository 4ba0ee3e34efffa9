"""A run as a plain TRL script that makes its weights again, byte for byte."""

from __future__ import annotations

import inspect
import re
import shutil
from contextlib import chdir
from importlib.metadata import version
from pathlib import Path

import torch

from rftui.automl.grid import ALGOS
from rftui.checkpoints import checkpoint_marker, link_or_copy
from rftui.config.portable import folders, portable
from rftui.config.spec import Spec
from rftui.errors import FAILED, UserError
from rftui.paths import ExperimentDir
from rftui.runs import Run
from rftui.training import data, plain_trl
from rftui.training.eject_run import Part, RunWriter, docstring
from rftui.training.source import Values, source

_LIBRARIES = ("torch", "transformers", "trl", "peft", "accelerate", "datasets")


def eject(experiment: ExperimentDir, lineage: list[tuple[Run, bool]], goal: Path, file: Path, beside: Path) -> None:
    """Write the script to `file`, and what cannot be code to the folder `beside` it; neither is there before.

    The `lineage` ends with the run; before it come the runs from which it was cloned warm, the first one first; each
    with whether a GPU trained it. `goal` is the run's checkpoint or `final/`, which the script makes again. Raises
    UserError where that cannot be done.
    """
    parts = _parts(experiment, lineage, goal)
    if any(part.gpu for part in parts) and not torch.cuda.is_available():
        raise UserError("it was trained on a GPU, and there is none here: eject it where it was trained", code=FAILED)
    fit = parts[-1].run.fit
    spec, values = Spec.load(experiment.spec(fit)), Values()
    if spec.setup_fn:
        function, classes = spec.setup()
        spec = Spec.load(experiment.spec(fit), classes)
        spec.setup_fn = function
    if not Path(spec.cwd).is_dir():
        raise UserError(
            f"its relative paths are meant from {spec.cwd}, which is not there: make it again", code=FAILED
        )
    train, evaluation = data.load(experiment, fit)
    with chdir(spec.cwd):
        writer = RunWriter(spec, train, evaluation, values)
        functions = [writer.function(part) for part in parts]
        pickled, modules = portable(values.objects, values.secrets) if values.objects else (b"", set())
    code = _code(functions, parts, file, beside, folders(modules, spec.sys_path) if pickled else None)
    text = f"{_about(experiment, parts, goal, file, values)}\n\n{code}"
    folders_of_rows = [experiment.data(fit) / name for name in ("train", "eval")[: 1 + writer.evaluated]]
    try:
        beside.mkdir()
        try:
            _fill(beside, folders_of_rows, pickled)
            file.write_text(text, encoding="utf-8")
        except OSError:
            shutil.rmtree(beside, ignore_errors=True)
            file.unlink(missing_ok=True)
            raise
    except OSError as error:
        why = error.strerror or error.args[0][0][2]  # copytree gathers its files' errors in one
        raise UserError(f"{file} cannot be written: {why}; name another with -o FILE", code=FAILED) from error


def _fill(beside: Path, rows: list[Path], pickled: bytes) -> None:
    for folder in rows:
        caches = shutil.ignore_patterns("cache-*", "tmp*")  # what `datasets` writes beside the rows
        shutil.copytree(folder, beside / folder.name, copy_function=link_or_copy, ignore=caches)
    if pickled:
        (beside / "objects.pkl").write_bytes(pickled)


def _parts(experiment: ExperimentDir, lineage: list[tuple[Run, bool]], goal: Path) -> list[Part]:
    ends = [experiment.run(clone.id).start for clone, _ in lineage[1:]] + [goal]
    parts: list[Part] = []
    used: int | None = None
    for (run, gpu), end in zip(lineage, ends, strict=True):
        marker = checkpoint_marker(end)
        if marker is None:
            raise UserError(
                f"the weights in {end} are not whole, so that it cannot be told how they came", code=FAILED
            )
        parts.append(Part(run, int(marker["step"]), marker.get("threads"), gpu, used))
        if run.continue_schedule:
            parts[-2].carried_on = True
        used = None if end is goal else int(marker["rows"])
    return parts


def _about(experiment: ExperimentDir, parts: list[Part], goal: Path, file: Path, values: Values) -> str:
    """The script's docstring."""
    run = parts[-1].run
    lines = [
        f"Run {run.id}, {run.name!r}, of the experiment {experiment.name!r} in plain TRL.",
        "",
        f"    python {file.name} [OUT]    its weights go to OUT; to {_out(file)} unless told",
        "",
        "They are, byte for byte, those in",
        f"    {goal}",
        "on the machine on which it was trained, with",
        f"    {', '.join(f'{library} {version(library)}' for library in _LIBRARIES)}",
    ]
    if goal.name != "final":
        lines += ["", f"The run had not ended: that is its newest checkpoint, at step {parts[-1].step}."]
    if len(parts) > 1:
        lines += ["", "It is a warm clone: " + ", then ".join(f"run {part.run.id}" for part in parts[:-1]) + " is"]
        lines[-1] += " trained first, and it goes on from those weights over the rows that are left."
    if not all(part.threads for part in parts):
        lines += ["", "With how many threads of torch it was trained is not known; OMP_NUM_THREADS sets them."]
    if values.secrets.variables:
        names = ", ".join(sorted(values.secrets.variables.values()))
        lines += ["", f"Secrets are left out; they are taken from the environment: set {names}."]
    return '"""' + docstring("\n".join(lines)) + '\n"""'


def _code(functions: list[str], parts: list[Part], file: Path, beside: Path, paths: list[str] | None) -> str:
    """All that follows the docstring. `paths`: where modules for the pickle are found; None where there is none."""
    body = "\n\n\n".join([*functions, _main(parts, file)])
    body = "\n\n\n".join([*_helpers(body), body])
    kept = [f"FILES = Path(__file__).resolve().parent / {source(beside.name)}"]
    if paths is not None:
        kept += [f"sys.path.append({source(path)})" for path in paths]
        kept += ['with open(FILES / "objects.pkl", "rb") as pickled:']
        kept += ["    OBJECTS = cloudpickle.load(pickled)  # functions, and objects that are no plain data"]
    kept += ["disable_caching()  # mapped rows are made again, and FILES stays as it is"]
    if any(part.gpu for part in parts):
        device = 'visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0")\n'
        device += 'os.environ["CUDA_VISIBLE_DEVICES"] = visible.split(",")[0]  # one GPU'
    else:
        device = 'os.environ["CUDA_VISIBLE_DEVICES"] = ""  # the CPU alone'
    constants = "\n".join(kept)
    standard, libraries = _imports(f"{device}\n{constants}\n{body}")
    return f"{standard}\n\n{device}\n\n{libraries}\n\n{constants}\n\n\n{body}\n"


def _main(parts: list[Part], file: Path) -> str:
    *before, last = [part.name for part in parts]
    lines = [f"    out = Path(sys.argv[1] if len(sys.argv) > 1 else {source(_out(file))}).resolve()"]
    if before:
        lines += ["    with tempfile.TemporaryDirectory() as folder:"]
        places = {name: f'Path(folder, "{name}")' for name in before} | {last: "out"}
        calls = zip(places.items(), ["", *places.values()], strict=False)
        lines += [f"        alone({name}, {place}{start and f', {start}'})" for (name, place), start in calls]
    else:
        lines += [f"    {last}(out)"]
    lines += [f'    print(f"the weights of run {parts[-1].run.id} are in {{out}}")']
    return "\n".join(["def main() -> None:", *lines, "", "", 'if __name__ == "__main__":', "    main()"])


def _out(file: Path) -> str:
    return f"{file.stem}_out"


def _helpers(body: str) -> list[str]:
    """The source of those functions and classes of `plain` that the body uses, in their order there."""
    found = [value for value in vars(plain_trl).values() if getattr(value, "__module__", "") == plain_trl.__name__]
    texts = {value.__name__: inspect.getsource(value).rstrip() for value in found}
    needed: set[str] = set()
    while more := {name for name in texts.keys() - needed if _names(name, body)}:
        needed |= more
        body += "".join(texts[name] for name in more)
    return [text for name, text in texts.items() if name in needed]


def _names(name: str, code: str) -> bool:
    return re.search(rf"(?<![\w.\"]){name}\b", code) is not None


_STANDARD = {
    "collections.abc": ["Callable"],
    "multiprocessing": ["get_context"],
    "pathlib": ["Path"],
    "typing": ["Any"],
}
_OTHERS = {
    "datasets": ["Dataset", "disable_caching", "load_from_disk"],
    "peft": ["LoraConfig", "PeftConfig", "PeftModel", "get_peft_model_state_dict", "set_peft_model_state_dict"],
    "safetensors.torch": ["load_file"],
    "transformers": ["AutoTokenizer", "Trainer", "TrainerCallback", "set_seed"],
    "trl": [f"{algo}{kind}" for algo in ALGOS for kind in ("Config", "Trainer")],
    "trl.trainer.utils": ["create_model_from_path"],
}


def _imports(code: str) -> tuple[str, str]:
    """The imports that the code needs: those of Python's own modules, and the others."""
    standard = [f"import {name}" for name in ("json", "os", "sys", "tempfile") if _names(name, code)]
    others = [f"import {name}" for name in ("cloudpickle", "torch") if _names(name, code)]
    for lines, modules in ((standard, _STANDARD), (others, _OTHERS)):
        for module, known in modules.items():
            if names := [name for name in known if _names(name, code)]:
                lines.append(f"from {module} import {', '.join(names)}")
    return "\n".join(standard), "\n".join(others)
