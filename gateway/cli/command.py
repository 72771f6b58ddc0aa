"""Talks to typer: options that all verbs share, and failures as messages with an exit code.

`command_of` makes a command from a function whose first parameter is the `Invocation`. The shared
options (`--home`, `--url`, `--ca`, `--json`, `-v`, `-q`) may stand before or after the verb. If a
parameter's type is a dataclass, each field of that dataclass becomes an option of the command. An
expected failure is a `CliError`. The command shows its message and remedy, without a traceback.
Modules that only a running verb needs are imported inside functions, so that `shoal --help` is
fast.
"""

from __future__ import annotations

import errno
import functools
import inspect
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, cast

import typer
from typer.main import get_command

from gateway.cli.exit_codes import INTERRUPTED

_ALLOW = "allow this user to write there, or choose another home with `--home DIR`"
_FREE = "free some space there, or choose another home with `--home DIR`"
UNWRITABLE: Mapping[int, str] = {
    errno.EROFS: _ALLOW,
    errno.EACCES: _ALLOW,
    errno.EPERM: _ALLOW,
    errno.ENOSPC: _FREE,
    errno.EDQUOT: _FREE,
}
"""Remedies for file errors that the user can correct, by errno."""

if TYPE_CHECKING:
    from bus.wire.errors import ShoalError
    from conf.settings import Settings
    from gateway.cli.node.node_api import NodeApi
    from gateway.cli.node.node_state import NodeState
    from gateway.cli.output.errors import CliError
    from gateway.cli.output.terminal import Output

SHARED = "Options of every verb"


@dataclass(frozen=True, slots=True)
class Invocation:
    """One run of a verb: the node's home and address, the trusted certificates, and the output."""

    home: Path | None
    url: str | None
    authorities: str | None
    output: Output

    def settings(self) -> Settings:
        """Return the settings of the node's home. Raises ConfigError if they are invalid, unless a
        node is running in that home. In that case this warns, and returns the settings that the
        node started with."""
        from conf.settings import load_settings

        settings = load_settings(home=self.home)
        if settings.trouble:
            self.output.warn(f"{settings.trouble}; the node keeps the settings it was started with")
        return settings

    def address(self) -> str:
        """Return the URL of the node's HTTP API, without a trailing slash."""
        return (self.url or self.settings().url).rstrip("/")

    def api(self) -> NodeApi:
        """Return the HTTP API of the node at `--url`, or of the home's own node with the owner's
        token. Raises CliError if the home's node does not run, even if another node answers at its
        address."""
        from gateway.cli.node.node_api import NodeApi, check_is_of, own_api
        from gateway.cli.node.trust import trust

        if self.url:
            trusted = None if self.authorities is None else trust(self.authorities)
            return NodeApi(self.address(), trusted=trusted)
        settings = self.settings()
        api = own_api(settings)
        check_is_of(api, settings.paths)
        return api

    def state(self) -> NodeState:
        """Return the cluster as the node sees it."""
        return self.api().state()


def options(
    ctx: typer.Context,
    home: Annotated[
        Path | None,
        typer.Option(
            "--home",
            envvar="SHOAL_HOME",
            show_envvar=True,
            help="Use DIR as the node's home folder.",
            metavar="DIR",
            rich_help_panel=SHARED,
        ),
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(
            "--url",
            envvar="SHOAL_URL",
            show_envvar=True,
            help="Connect to the node at this address.",
            rich_help_panel=SHARED,
        ),
    ] = None,
    authorities: Annotated[
        str | None,
        typer.Option(
            "--ca",
            envvar="SHOAL_CA",
            show_envvar=True,
            help="With --url https://...: trust the certificates in this PEM file.",
            metavar="FILE",
            rich_help_panel=SHARED,
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON.", rich_help_panel=SHARED)
    ] = False,
    verbose: Annotated[
        int,
        typer.Option(
            "--verbose",
            "-v",
            count=True,
            help="Print more (-vv: everything).",
            rich_help_panel=SHARED,
        ),
    ] = 0,
    quiet: Annotated[
        bool,
        typer.Option(
            "--quiet", "-q", help="Print only results and errors.", rich_help_panel=SHARED
        ),
    ] = False,
) -> None:
    """shoal runs large language models on your machines: one node or many, any client."""
    from gateway.cli.output.terminal import QUIET, Output

    ctx.obj = Invocation(home, url, authorities, Output(as_json, QUIET if quiet else verbose))


def command_of(act: Callable[..., None], name: str, *, is_here: bool) -> Any:
    """Return typer's command that runs `act(invocation, ...)` and also takes the shared options.

    `is_here`: the command refuses `--url`.
    """
    context, *shared = _parameters(options)
    own = _parameters(act)[1:]
    values: dict[str, Any] = {
        parameter.name: parameter.annotation
        for parameter in own
        if is_dataclass(parameter.annotation)
    }
    own = [
        field
        for parameter in own
        for field in (
            _parameters(values[parameter.name]) if parameter.name in values else [parameter]
        )
    ]

    @functools.wraps(act)
    def run(ctx: typer.Context, **given: Any) -> None:
        """Build the invocation from the shared options, then call `act` with the invocation."""
        invocation = _invocation(ctx.obj, given)
        for value, kind in values.items():
            given[value] = kind(**{field.name: given.pop(field.name) for field in fields(kind)})
        end_in_words(invocation.output, lambda: _run(act, invocation, given, is_here=is_here))

    keyword = [option.replace(kind=inspect.Parameter.KEYWORD_ONLY) for option in (*own, *shared)]
    run.__signature__ = inspect.Signature([context, *keyword])  # pyright: ignore[reportAttributeAccessIssue]
    run.__annotations__ = {option.name: option.annotation for option in (context, *keyword)}
    app = typer.Typer(add_completion=False, rich_markup_mode="markdown")
    app.command(name)(run)
    return get_command(app)


def _run(
    act: Callable[..., None], invocation: Invocation, given: dict[str, Any], *, is_here: bool
) -> None:
    if is_here and invocation.url:
        from gateway.cli.output.errors import USAGE, CliError

        raise CliError(
            (
                "this command works on this machine only, but --url (or SHOAL_URL) is "
                f"{invocation.url}"
            ),
            remedy="use `--home DIR` instead of --url, or run the command on that machine",
            code=USAGE,
        )
    act(invocation, **given)


def _parameters(of: Callable[..., Any]) -> list[inspect.Parameter]:
    return list(inspect.signature(of, eval_str=True).parameters.values())


def _invocation(before: Invocation, given: dict[str, Any]) -> Invocation:
    """Return the invocation of a verb. Removes the shared options from `given`. A shared option
    that is missing in `given` is taken from `before`, the options that stood before the verb."""
    from gateway.cli.output.terminal import QUIET, Output

    home, url = given.pop("home") or before.home, given.pop("url") or before.url
    authorities = given.pop("authorities") or before.authorities
    as_json = given.pop("as_json") or before.output.as_json
    verbose, quiet = given.pop("verbose"), given.pop("quiet")
    verbosity = QUIET if quiet else verbose or before.output.verbosity
    return Invocation(home, url, authorities, Output(as_json, verbosity))


def end_in_words(output: Output, act: Callable[[], None]) -> None:
    """Run `act`. If it fails, write the error to `output` and raise typer.Exit with the error's
    exit code."""
    from bus.wire.errors import ShoalError
    from gateway.cli.output.errors import FAILED, CliError

    try:
        act()
    except ShoalError as error:
        problem = _in_words(error)
        output.error(problem)
        raise typer.Exit(problem.code) from None
    except KeyboardInterrupt:
        output.note("interrupted")
        raise typer.Exit(INTERRUPTED) from None
    except BrokenPipeError:
        # The reader closed the pipe; Python must not flush to it at exit either.
        sys.stdout = None  # pyright: ignore[reportAttributeAccessIssue]
        raise typer.Exit(0) from None
    except (typer.Exit, typer.Abort):
        raise
    except OSError as error:
        if error.filename is None or error.errno not in UNWRITABLE:
            _end_as_defect(output, error)
        text = f"{error.filename}: {error.strerror or error}"
        output.error(CliError(text, remedy=UNWRITABLE[cast(int, error.errno)]))
        raise typer.Exit(FAILED) from None
    except Exception as error:
        _end_as_defect(output, error)


def _end_as_defect(output: Output, error: Exception) -> NoReturn:
    from gateway.cli.output.errors import FAILED, CliError
    from gateway.cli.output.terminal import DEBUG

    if output.verbosity >= DEBUG:
        output.detail(traceback.format_exc())
    text = f"internal error in shoal: {type(error).__name__}: {error}"
    output.error(CliError(text, remedy="run it again with -vv and report the traceback"))
    raise typer.Exit(FAILED) from None


def _in_words(error: ShoalError) -> CliError:
    from bus.wire.errors import ConfigError
    from conf.settings import DEFAULTS_FILE
    from gateway.cli.output.errors import CliError

    if isinstance(error, CliError):
        return error
    config = isinstance(error, ConfigError)
    remedy = f"correct the setting there; {DEFAULTS_FILE} describes every setting" if config else ""
    return CliError(str(error), remedy=remedy)
