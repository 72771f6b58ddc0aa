"""Talks to typer: what every verb shares, options and the end in words.

`command(app)` makes a command of a function whose first parameter is the `Invocation`; the shared
options (`--home`, `--url`, `--json`, `-v`, `-q`) may stand before or after the verb. Expected
failures are `CliError`s: shown with their remedy, never with a traceback.
"""

from __future__ import annotations

import functools
import inspect
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from bus.wire.errors import ConfigError, ShoalError
from conf.settings import Settings, load_settings
from gateway.cli.node.node_api import NodeApi, api_key
from gateway.cli.output.errors import FAILED, INTERRUPTED, CliError
from gateway.cli.output.terminal import DEBUG, Output

SHARED = "Options of every verb"
HomeOption = Annotated[
    Path | None,
    typer.Option(
        "--home",
        envvar="SHOAL_HOME",
        show_envvar=True,
        help="Keep everything of this node under DIR.",
        metavar="DIR",
        rich_help_panel=SHARED,
    ),
]
UrlOption = Annotated[
    str | None,
    typer.Option(
        "--url",
        envvar="SHOAL_URL",
        show_envvar=True,
        help="Talk to the node at this address.",
        rich_help_panel=SHARED,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Say it in JSON.", rich_help_panel=SHARED)]
VerboseOption = Annotated[
    int,
    typer.Option(
        "--verbose", "-v", count=True, help="Say more (-vv: all).", rich_help_panel=SHARED
    ),
]
QuietOption = Annotated[
    bool, typer.Option("--quiet", "-q", help="Say only what matters.", rich_help_panel=SHARED)
]


@dataclass(frozen=True, slots=True)
class Invocation:
    """One run of a verb: the home and address of its node, and where it says things."""

    home: Path | None
    url: str | None
    output: Output

    def settings(self) -> Settings:
        """Return the settings of the node's home. Raises CliError for a wrong one."""
        try:
            return load_settings(home=self.home)
        except ConfigError as error:
            raise _config_problem(error) from error

    def address(self) -> str:
        """Return the URL of the node's HTTP API, without a slash at its end."""
        return (self.url or self.settings().url).rstrip("/")

    def api(self) -> NodeApi:
        """Return the node's HTTP API, with the key of the environment."""
        return NodeApi(self.address(), api_key())


@dataclass(slots=True)
class EarlierOptions:
    """Shared options that stood before the verb."""

    home: Path | None = None
    url: str | None = None
    as_json: bool = False
    verbosity: int = 0


def options(
    ctx: typer.Context,
    home: HomeOption = None,
    url: UrlOption = None,
    as_json: JsonOption = False,
    verbose: VerboseOption = 0,
    quiet: QuietOption = False,
) -> None:
    """shoal runs large language models on your machines: one node or many, any client."""
    ctx.obj = EarlierOptions(home, url, as_json, -1 if quiet else verbose)


def command(app: typer.Typer, name: str | None = None, **extra: Any) -> Callable[..., Any]:
    """Return a decorator that registers `act(invocation, ...)` with the shared options as well."""

    def register(act: Callable[..., None]) -> Callable[..., None]:
        """Register `act` and return it as it was."""
        own = list(inspect.signature(act, eval_str=True).parameters.values())[1:]
        shared = [
            _parameter("home", HomeOption, None),
            _parameter("url", UrlOption, None),
            _parameter("as_json", JsonOption, False),
            _parameter("verbose", VerboseOption, 0),
            _parameter("quiet", QuietOption, False),
        ]
        context = inspect.Parameter(
            "ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context
        )
        own = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in own]

        @functools.wraps(act)
        def run(ctx: typer.Context, **given: Any) -> None:
            """Run `act` with an invocation made of the shared options."""
            before = ctx.obj if isinstance(ctx.obj, EarlierOptions) else EarlierOptions()
            invocation = _invocation(before, given)
            end_in_words(invocation.output, lambda: act(invocation, **given))

        parameters = [context, *own, *shared]
        run.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportAttributeAccessIssue]
        run.__annotations__ = {one.name: one.annotation for one in parameters}
        app.command(name, **extra)(run)
        return act

    return register


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, annotation=annotation, default=default)


def _invocation(before: EarlierOptions, given: dict[str, Any]) -> Invocation:
    home, url = given.pop("home") or before.home, given.pop("url") or before.url
    as_json = given.pop("as_json") or before.as_json
    verbose, quiet = given.pop("verbose"), given.pop("quiet")
    verbosity = -1 if quiet else verbose or before.verbosity
    return Invocation(home, url, Output(as_json=as_json, verbosity=verbosity))


def end_in_words(output: Output, act: Callable[[], None]) -> None:
    """Run `act`; say what goes wrong on `output`, and raise typer.Exit with its exit code."""
    try:
        act()
    except CliError as problem:
        output.error(problem)
        raise typer.Exit(problem.code) from None
    except ConfigError as error:
        output.error(_config_problem(error))
        raise typer.Exit(FAILED) from None
    except ShoalError as error:
        output.error(CliError(str(error)))
        raise typer.Exit(FAILED) from None
    except KeyboardInterrupt:
        output.note("interrupted")
        raise typer.Exit(INTERRUPTED) from None
    except BrokenPipeError:
        # Whoever read our output has seen enough; nothing may be written there at exit either.
        sys.stdout = None  # pyright: ignore[reportAttributeAccessIssue]
        raise typer.Exit(0) from None
    except (typer.Exit, typer.Abort):
        raise
    except Exception as error:
        if output.verbosity >= DEBUG:
            output.err.print(traceback.format_exc(), markup=False)
        text = f"this is a defect of shoal: {type(error).__name__}: {error}"
        output.error(CliError(text, remedy="repeat it with -vv for the traceback and report it"))
        raise typer.Exit(FAILED) from None


def _config_problem(error: ConfigError) -> CliError:
    return CliError(str(error), remedy="`shoal config show` tells each setting and its source")
