//! twinctl, in domain 0 and in driver domains: says what carries guests' packets to the outside, and what should.
//!
//! It asks the daemon of the domain that it runs in: tandemd or twind.

mod arguments;
mod reload;
mod say;
mod screen;
mod terminal;
mod top;
mod upgrade;

use anyhow::Result;
use arguments::{Arguments, Wanted};
use control::socket::Connection;
use control::{log, Answer};
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments = match arguments::parse(lexopt::Parser::from_env(), arguments::place) {
        Ok(Arguments { wanted: Wanted::Help, .. }) => return print(arguments::HELP),
        Ok(Arguments { wanted: Wanted::Version, .. }) => return print(&control::version("twinctl")),
        Ok(arguments) => arguments,
        Err(why) => {
            eprintln!("twinctl: {why}");
            return ExitCode::from(2);
        }
    };
    match run(&arguments) {
        Ok(status) => status,
        Err(error) if arguments.is_json => {
            print(&Answer::Error(format!("{error:#}")).line());
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("twinctl: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<ExitCode> {
    let mut connection = Connection::open(&arguments.socket)?;
    let (request, is_stats) = match &arguments.wanted {
        Wanted::Help | Wanted::Version => return Ok(ExitCode::SUCCESS),
        Wanted::Upgrade(request) => (request, false),
        Wanted::Top(top) => return top::run(&arguments.socket, connection, top).map(|()| ExitCode::SUCCESS),
        Wanted::Stats(request) => (request, true),
        Wanted::Ask(request) | Wanted::Reload(request) => (request, false),
    };
    let told = match (connection.ask(request)?, &arguments.wanted) {
        (Answer::Ok(told), Wanted::Upgrade(_)) => upgrade::wait(&arguments.socket, &told)?,
        (Answer::Ok(_), Wanted::Reload(_)) => reload::wait(&arguments.socket, connection)?,
        (Answer::Ok(told), _) => told,
        (Answer::Error(why), _) => anyhow::bail!("{why}"),
    };
    Ok(print(&match (arguments.is_json, is_stats) {
        (true, _) => serde_json::to_string_pretty(&told)?,
        (false, true) => say::stats(&told),
        (false, false) => say::status(&told),
    }))
}

/// Prints lines; that nobody reads them to the end is no error.
fn print(text: &str) -> ExitCode {
    match log::show(&format!("{}\n", text.trim_end())) {
        Ok(_) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}
