"""The group of all commands: a command's module is imported when that command is called."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from tosaic.cli.colors import say
from tosaic.cli.guard import exit_code, explain
from tosaic.cli.usage import UsageError, suggest, translate
from tosaic.core.errors import Invalid, TosaicError

SETTINGS: Mapping[str, Any] = MappingProxyType(
    {
        "add_completion": False,
        # Plain help reads the same with and without color, and needs no import of rich.
        "rich_markup_mode": None,
        "pretty_exceptions_enable": False,
        "context_settings": {"help_option_names": ["-h", "--help"]},
    }
)


@dataclass(frozen=True, slots=True)
class Entry:
    """A command: its function as `module:name`, one line about it, and command lines to start from."""

    function: str
    about: str
    examples: tuple[str, ...]

    def load(self, name: str) -> Any:
        """Import the function, and make the command of it."""
        module, _, function = self.function.partition(":")
        app = typer.Typer(**SETTINGS)
        # The character keeps the help formatter from filling these lines.
        epilog = "\n".join(["\b", "Examples:", *(f"  {line}" for line in self.examples)])
        app.command(name, cls=_Command, epilog=epilog)(getattr(importlib.import_module(module), function))
        return typer.main.get_command(app)


ENTRIES: Mapping[str, Entry] = MappingProxyType(
    {
        "compile": Entry(
            "tosaic.cli.compile:compile_model",
            "Compile a model for a target.",
            (
                "tosaic compile my_model.py -t ethos-u85-256 --calibration samples.npz",
                "tosaic compile mobilenet_v2 --io int8 --layout nhwc --verify",
                "tosaic compile my_model.py --optimize size --fail-on-fallback",
                "tosaic compile my_model.py --config board.toml -o build/",
            ),
        ),
        "fit": Entry(
            "tosaic.cli.fit:fit_model",
            "Find the programs that fit on a board.",
            (
                "tosaic fit my_model.py -t ethos-u55-128 --sram 512K --flash 2M",
                "tosaic fit my_model.py --board himax-we2 --calibration samples.npz",
                "tosaic fit my_model.py --board my_board.toml -o best.pte",
            ),
        ),
        "advise": Entry(
            "tosaic.cli.advise:advise_model",
            "Suggest options that make a program better.",
            ("tosaic advise my_model.py -t ethos-u85-256", "tosaic advise mobilenet_v2 --io int8 --json"),
        ),
        "sweep": Entry(
            "tosaic.cli.sweep:sweep_models",
            "Compile many models for many targets.",
            (
                "tosaic sweep ds_cnn resnet8 -t ethos-u55-128 -t ethos-u85-256 -o results/",
                "tosaic sweep my_model.py --all-targets --io float --io int8 -o results/ --verify",
                "tosaic sweep ds_cnn --all-targets -o results/ --cluster tcp://scheduler:8786",
            ),
        ),
        "build": Entry(
            "tosaic.cli.build:build_firmware",
            "Build the firmware of a board from a .pte.",
            (
                "tosaic build ds_cnn.pte --board corstone-300",
                "tosaic build ds_cnn.pte --board corstone-320 --with-samples -o test.elf",
                "tosaic build ds_cnn.pte --board corstone-300 --c-project firmware/",
            ),
        ),
        "run": Entry(
            "tosaic.cli.run:run_file",
            "Run a .pte or a firmware on this machine.",
            (
                "tosaic run ds_cnn.pte",
                "tosaic run ds_cnn.pte --input x.npy -o result.npz",
                "tosaic run ds_cnn.bpte",
                "tosaic run ds_cnn.pte --log",
                "tosaic run ds_cnn.pte --etdump ds_cnn.etdp",
                "tosaic run ds_cnn.pte --engine board --board corstone-300",
            ),
        ),
        "verify": Entry(
            "tosaic.cli.run:verify_file",
            "Compare a .pte with TOSA bit for bit, and with torch.",
            (
                "tosaic verify ds_cnn.pte",
                "tosaic verify ds_cnn.pte --rounds 20 --json",
                "tosaic verify other.pte --tosa first.tosa --tosa second.tosa",
            ),
        ),
        "inspect": Entry(
            "tosaic.cli.inspect:show_file",
            "Show what is in a compiled file.",
            (
                "tosaic inspect ds_cnn.pte",
                "tosaic inspect ds_cnn.tosaic --text",
                "tosaic inspect ds_cnn.pte --layers",
                "tosaic inspect ds_cnn.pte --csv layers.csv --trace trace.json",
                "tosaic inspect ds_cnn.pte --commands",
            ),
        ),
        "report": Entry(
            "tosaic.cli.report:write_report",
            "Write an HTML report about a .pte.",
            ("tosaic report ds_cnn.pte -o report.html", "tosaic report ds_cnn.pte --verify"),
        ),
        "diff": Entry(
            "tosaic.cli.diff:diff_files",
            "Compare two compiled programs.",
            (
                "tosaic diff before.pte after.pte",
                "tosaic diff before.pte after.pte --max-growth 2 --markdown",
            ),
        ),
        "ops": Entry(
            "tosaic.cli.catalog:show_ops",
            "List operators and their constraints.",
            ("tosaic ops", "tosaic ops ethos-u55-128", "tosaic ops conv2d"),
        ),
        "targets": Entry(
            "tosaic.cli.catalog:show_targets", "List the targets.", ("tosaic targets", "tosaic targets --json")
        ),
        "doctor": Entry(
            "tosaic.cli.doctor:show_health", "Check the installation.", ("tosaic doctor", "tosaic doctor --fix vgf")
        ),
        "scripts": Entry(
            "tosaic.cli.scripts:write_scripts",
            "Write the scripts of ExecuTorch's tutorials.",
            ("tosaic scripts .",),
        ),
        "completion": Entry(
            "tosaic.cli.completion:show_completion",
            "Print a script that completes commands in a shell.",
            (
                'eval "$(tosaic completion bash)"    # in ~/.bashrc',
                'eval "$(tosaic completion zsh)"     # in ~/.zshrc',
                "tosaic completion fish | source     # in ~/.config/fish/config.fish",
            ),
        ),
    }
)


class _Command(TyperCommand):
    """A command whose help names arguments without the Python types that typer adds."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [piece.replace("{", "").replace("}", "") for piece in super().collect_usage_pieces(ctx)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        parameters: list[Any] = list(self.params)
        for parameter in parameters:
            if parameter.param_type_name == "argument":
                parameter.display_type_rich = _hide_type
        super().format_options(ctx, formatter)


def _hide_type(ctx: Any) -> str:
    return ""


class CommandGroup(TyperGroup):
    """The commands of `ENTRIES`."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(ENTRIES)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in self.commands and cmd_name in ENTRIES:
            self.commands[cmd_name] = ENTRIES[cmd_name].load(cmd_name)
        return self.commands.get(cmd_name)

    def make_context(self, info_name: Any, args: list[str], parent: Any = None, **extra: Any) -> Any:
        with _explained(lambda: "tosaic", args):
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: Any) -> Any:
        with _explained(lambda: f"tosaic {ctx.invoked_subcommand}", ctx.args):
            return super().invoke(ctx)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] not in ENTRIES and not ctx.resilient_parsing:
            fix = suggest(args[0], ENTRIES, "`tosaic -h` lists the commands")
            raise Invalid(f"unknown command `{args[0]}`", fix=fix)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.about) for name, entry in ENTRIES.items()])

    def get_help_option(self, ctx: Any) -> Any:
        option = super().get_help_option(ctx)
        if option is not None:
            # Without a default, typer imports pydantic for the group's own `--help` when a command is called.
            option.default = False
        return option


@contextmanager
def _explained(get_command: Callable[[], str], words: Sequence[str]) -> Generator[None]:
    """Report errors about the command line as those of a command are."""
    # Typer removes the words that it has read.
    given = tuple(words)
    try:
        yield
    except UsageError as error:
        described = translate(error, get_command(), given)
        if described is None:
            raise
        _exit(described)
    except TosaicError as error:
        _exit(error)


def _exit(error: TosaicError) -> NoReturn:
    say(explain(error), err=True)
    raise typer.Exit(exit_code(error)) from None
