"""The `rftui` command."""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
import traceback
from collections.abc import Callable
from functools import partial
from typing import NoReturn

from rftui import __version__
from rftui.commands import doctor, eject, launch, listing, mlflow_ui, ops, samples, set_rules
from rftui.commands.text import dump_line
from rftui.config.nearest import nearest
from rftui.errors import DONE, FAILED, INTERRUPTED, UserError
from rftui.link import LinkLost
from rftui.paths import home_dir

_OPS = {
    "stop": "stop runs at their next step; they can be resumed",
    "resume": "resume stopped runs where they stopped",
    "delete": "delete runs; undo restores them until the scheduler ends",
    "undo": "restore deleted runs",
}


_RUN = "a run's number or name; best or best:K for the runs with the best last values"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        unknown = re.search(r"invalid choice: '(.*)' \(choose from (.*)\)", message)
        if unknown and "COMMAND" in message:
            word, known = unknown[1], re.findall(r"[\w-]+", unknown[2])
            hint = f"; did you mean rftui run {word}?" if os.path.isfile(word) else nearest(word, known)
            raise UserError(f"unknown command {word!r}" + (hint or "; rftui --help lists them"))
        raise UserError(f"{message} ({self.prog} --help)")


def main(argv: list[str] | None = None) -> int:
    """Run the command line; its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # names in any script, shown in a terminal of any encoding
    given = sys.argv[1:] if argv is None else argv
    fail = partial(_fail, json="--json" in _own(given))
    try:
        code = _dispatch(given)
        sys.stdout.flush()
        return code
    except UserError as fault:
        return fail(fault.code, *fault.lines)
    except LinkLost as lost:
        return fail(FAILED, str(lost))
    except BrokenPipeError:
        # The reader has seen enough; Python would complain when it flushes stdout at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:
        with tempfile.NamedTemporaryFile("w", prefix="rftui-", suffix=".txt", delete=False, encoding="utf-8") as log:
            traceback.print_exc(file=log)
        return fail(FAILED, f"unexpected {type(error).__name__}: {error}; its traceback is in {log.name}")


def _fail(code: int, *lines: str, json: bool) -> int:
    for line in lines:
        if json:
            print(dump_line({"ok": False, "text": line}), flush=True)
        else:
            print(f"rftui: {line}", file=sys.stderr)
    return code


def _own(argv: list[str]) -> list[str]:
    """What is ours, and not a script's."""
    return argv[: argv.index("--")] if "--" in argv else argv


def _dispatch(argv: list[str]) -> int:
    own = _own(argv)
    rest = argv[len(own) + 1 :]
    arguments, unknown = _parser().parse_known_args(own)
    command: Callable[[argparse.Namespace], int] = arguments.command
    if command is launch.run:
        arguments.args += [word for word in unknown if not word.startswith("-")] + rest
        unknown = [word for word in unknown if word.startswith("-")]
        if unknown:
            raise UserError(f"rftui run has no option {unknown[0]}; put the script's options after --")
    elif unknown or rest:
        raise UserError(f"unrecognized: {' '.join(unknown + rest)} (rftui --help)")
    arguments.home = home_dir(arguments.home)
    return command(arguments)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="rftui", description="Fine-tune many configurations at once and control them as they train.")
    parser.add_argument("--version", action="version", version=f"rftui {__version__}")
    _add_common(parser, home=None, readonly=False, ascii=False)
    parser.set_defaults(command=launch.pick, devices=None)
    commands = parser.add_subparsers(metavar="COMMAND", parser_class=_Parser)

    def add(name: str, run: Callable[[argparse.Namespace], int], about: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=about, description=about[0].upper() + about[1:] + ".")
        # A flag that follows the command must not put back what one before it said.
        _add_common(command, home=argparse.SUPPRESS, readonly=argparse.SUPPRESS, ascii=argparse.SUPPRESS)
        command.set_defaults(command=run)
        return command

    run = add("run", launch.run, "run a script's experiments under the terminal UI")
    run.add_argument("script", metavar="SCRIPT")
    run.add_argument("args", metavar="ARGS", nargs="*", help="arguments for the script; put its options after --")
    opened = add("open", launch.open_experiment, "attach to a running experiment, or reopen one that has ended")
    opened.add_argument("name", metavar="NAME")
    for command in (run, opened):
        command.add_argument("--headless", action="store_true", help="plain progress lines instead of the terminal UI")
        command.add_argument("--devices", type=_devices, help="auto, cpu, cpu:N (N workers), or GPUs: 0,1,...")
    ls = add("ls", listing.ls, "list the experiments, newest first")
    ls.add_argument("--json", action="store_true")
    show = add("show", listing.show, "show an experiment's runs, or one of them")
    show.add_argument("name", metavar="NAME")
    show.add_argument("run", metavar="RUN", nargs="?", help="a run's number or name")
    show.add_argument("--json", action="store_true")
    for op, about in _OPS.items():
        command = add(op, ops.run_op, about)
        command.add_argument("name", metavar="NAME")
        command.add_argument("runs", metavar="RUN", nargs="+", help=_RUN)
        command.add_argument("--json", action="store_true", help="an object for each run: ok, text, run")
        command.set_defaults(op=op, yes=True)
        if op == "delete":
            command.add_argument("--yes", action="store_true", default=False, help="do not ask")
    clone = add("clone", ops.clone, "clone runs with other values")
    clone.add_argument("name", metavar="NAME")
    clone.add_argument("runs", metavar="RUN", nargs="+", help=_RUN)
    several = "a new value; several (lr=1e-4,2e-4) make one clone each; lists are separated by ;"
    clone.add_argument("--set", metavar="KNOB=VALUE", action="append", default=[], dest="changes", help=several)
    clone.add_argument("--warm", action="store_true", help="start from the run's weights and position")
    committed = "warm from its checkpoint at that step (counted from the run's own start), not from now"
    clone.add_argument("--from-step", metavar="N", type=int, help=committed)
    carried = "warm, continuing the run's optimizer and schedule"
    clone.add_argument("--continue-schedule", action="store_true", dest="continue_schedule", help=carried)
    advice = "apply the change suggested for the run; --set adds to it"
    clone.add_argument("--suggested", action="store_true", help=advice)
    clone.add_argument("--stop-parent", action="store_true", help="stop the run once its clone is accepted")
    clone.add_argument("--name", metavar="TEXT", dest="clone_name", help="the new run's name")
    clone.add_argument("--json", action="store_true", help="an object for each run: ok, text, run, runs")
    ruled = add("rules", set_rules.rules, "list the stopping rules, or switch one on or off")
    ruled.add_argument("name", metavar="NAME")
    ruled.add_argument("word", metavar="on|off", nargs="?", choices=("on", "off"))
    ruled.add_argument("rule", metavar="RULE", nargs="?", help="halving, median or early")
    ruled.add_argument("--set", metavar="PARAMETER=VALUE", action="append", default=[], dest="changes")
    ruled.add_argument("--json", action="store_true", help="an array of the rules; or an object: ok, text")
    ejected = add("eject", eject.eject, "write a run as a plain TRL script that reproduces its weights")
    ejected.add_argument("name", metavar="NAME")
    ejected.add_argument("run", metavar="RUN", help="a run's number or name")
    ejected.add_argument("-o", metavar="FILE", dest="output", help="default: ./NAME-runRUN.py")
    mlflow = add("mlflow", mlflow_ui.serve, "open MLflow's own UI over the home")
    mlflow.add_argument("--port", type=int, help="default: 5000, or the next free port")
    init = add("init", samples.init, "write the sample experiments to a directory")
    init.add_argument("dir", metavar="DIR", nargs="?", default="sample_experiments")
    add("doctor", doctor.doctor, "check this machine: what it has, what is missing, what to do")
    return parser


def _add_common(parser: argparse.ArgumentParser, home: str | None, readonly: bool | str, ascii: bool | str) -> None:  # noqa: A002
    parser.add_argument("--home", metavar="DIR", default=home, help="where experiments are kept")
    parser.add_argument("--readonly", action="store_true", default=readonly, help="show only, change nothing")
    parser.add_argument("--ascii", action="store_true", default=ascii, help="draw with plain characters")


def _devices(text: str) -> str:
    if not re.fullmatch(r"auto|cpu(:[1-9]\d*)?|\d+(,\d+)*", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not one of auto, cpu, cpu:N, 0,1,...")
    return text


if __name__ == "__main__":
    sys.exit(main())
