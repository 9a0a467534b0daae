//! The crates' own tests, on the host: `cargo test`; and the formatter and clippy.

use super::Score;
use anyhow::{Context, Result};
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Instant;
use testbed::host;

/// `--lint`: the formatter, and clippy on all that runs on the host and on the hypervisor. Any remark of theirs is a
/// failure, and so is it that one of them cannot be had.
pub fn lints(score: &mut Score) {
    let has_them = host::provide(host::For::Hypervisor).and_then(|()| host::provide(host::For::Linting));
    if has_them.is_err() {
        return score.note("unit", "formatter and clippy", 0.0, &has_them.map(|()| String::new()));
    }
    let on_host = |args: &[&str]| {
        let mut command = Command::new(cargo());
        command.args(args).current_dir(host::root());
        command
    };
    lint("formatting", on_host(&["fmt", "--all", "--check"]), score);
    lint("clippy", on_host(&["clippy", "--quiet", "--all-targets", "--", "-D", "warnings"]), score);
    lint("clippy of the hypervisor", testbed::build::lint(), score);
}

pub fn run(filter: Option<&str>, score: &mut Score) -> Result<()> {
    println!("Unit tests of every crate (the first time everything is compiled)");
    let mut child = Command::new(cargo())
        .args(["test", "--no-fail-fast", "--quiet"])
        .args(filter)
        .current_dir(host::root())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start cargo")?;
    let output = child.stdout.take().context("cargo has no output")?;
    let mut failed_lines = 0;
    let start = Instant::now();
    for line in BufReader::new(output).lines().map_while(Result::ok) {
        if let Some((passed, failed)) = parse(&line) {
            score.passed += passed;
            score.failed += failed;
            failed_lines += failed;
        } else if line.contains("FAILED") || line.contains("panicked") || line.starts_with("----") {
            println!("  {line}");
        }
    }
    let status = child.wait()?;
    if !status.success() && failed_lines == 0 {
        score.note(
            "unit",
            "every crate compiles and its tests run",
            start.elapsed().as_secs_f32(),
            &Err(anyhow::anyhow!("cargo test: {status}")),
        );
    }
    println!("     unit tests took {:.0} s", start.elapsed().as_secs_f32());
    Ok(())
}

/// The cargo that runs us.
fn cargo() -> String {
    std::env::var("CARGO").unwrap_or_else(|_| "cargo".into())
}

fn lint(name: &str, mut command: Command, score: &mut Score) {
    let start = Instant::now();
    let result = host::output(&mut command).map(|_| String::new());
    score.note("unit", name, start.elapsed().as_secs_f32(), &result);
}

/// Passed and failed from a line that ends a test program's run.
fn parse(line: &str) -> Option<(u64, u64)> {
    let rest = line.trim().strip_prefix("test result: ")?;
    let number = |word: &str| {
        let mut before = None;
        for part in rest.split([' ', ';']).filter(|p| !p.is_empty()) {
            if part == word {
                return before;
            }
            before = part.trim_end_matches('.').parse::<u64>().ok();
        }
        None
    };
    Some((number("passed")?, number("failed")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cargos_summary_is_read() {
        let line = "test result: FAILED. 12 passed; 3 failed; 0 ignored; 0 measured; 1 filtered out; finished in 0.01s";
        assert_eq!(parse(line), Some((12, 3)));
        assert_eq!(parse("running 3 tests"), None);
    }

    #[test]
    fn every_crate_has_the_workspaces_lints_of_unsafe_code_and_only_the_hypervisor_may_have_any() {
        let read = |path: &str| std::fs::read_to_string(host::root().join(path)).unwrap();
        let workspace = read("Cargo.toml");
        let members = workspace.lines().find_map(|line| line.strip_prefix("members = ")).unwrap();
        let members: Vec<&str> = members.split('"').skip(1).step_by(2).collect();
        assert!(members.len() > 10 && members.contains(&"hv"));
        for member in members {
            let manifest = read(&format!("{member}/Cargo.toml"));
            if manifest.contains("[lints]\nworkspace = true\n") {
                continue;
            }
            let unsafe_code = if member == "hv" { "allow" } else { "deny" };
            for wanted in [
                &format!("\nunsafe_code = \"{unsafe_code}\"\n"),
                "\nunsafe_op_in_unsafe_fn = \"deny\"\n",
                "\nundocumented_unsafe_blocks = \"warn\"\n",
                "\nmissing_safety_doc = \"warn\"\n",
            ] {
                assert!(manifest.contains(wanted), "{member}/Cargo.toml lacks{wanted}");
            }
        }
    }

    #[test]
    fn clippy_looks_at_the_hypervisor_and_any_remark_is_a_failure() {
        let command = testbed::build::lint();
        let args: Vec<_> = command.get_args().map(|arg| arg.to_string_lossy()).collect();
        assert_eq!(args.iter().filter(|arg| *arg == "clippy").count(), 1);
        assert!(args.windows(2).any(|two| two == ["--package", "hv"]));
        assert!(args.ends_with(&["--".into(), "-D".into(), "warnings".into()]));
    }
}
