//! `./tandem fuzz [NAME] [--seconds N]`: the fuzz targets of `fuzz/`, with libFuzzer, for so many seconds each.
//!
//! The coverage instrumentation is asked for by compiler options that stable compilers have, so neither cargo-fuzz nor
//! a nightly toolchain is needed; checks for overflow and `debug_assert` are on.

use crate::options::Options;
use anyhow::{ensure, Context, Result};
use std::process::Command;
use testbed::host;

const INSTRUMENTATION: &str = "--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
     -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
     -Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1";

pub fn run(options: &Options) -> Result<()> {
    let wanted = options.words.first();
    let dir = host::root().join("fuzz");
    let names: Vec<String> = testbed::images::files(&dir.join("fuzz_targets"))?
        .iter()
        .filter_map(|p| Some(p.file_stem()?.to_str()?.to_string()))
        .filter(|name| wanted.is_none_or(|w| name.contains(w.as_str())))
        .collect();
    ensure!(!names.is_empty(), "no such fuzz target in {}", dir.display());
    if options.list {
        names.iter().for_each(|name| println!("{name}"));
        return Ok(());
    }
    host::provide(host::For::Fuzzing)?;
    let seconds = options.seconds.unwrap_or(60);
    for name in names {
        println!("fuzzing {name} for {seconds} s");
        let corpus = dir.join("corpus").join(&name);
        let artifacts = dir.join("artifacts").join(&name);
        std::fs::create_dir_all(&corpus)?;
        std::fs::create_dir_all(&artifacts)?;
        let target = host::target("fuzz")?;
        let status = Command::new(std::env::var("CARGO").unwrap_or_else(|_| "cargo".into()))
            .args([
                "run",
                "--release",
                "--quiet",
                "--target",
                "x86_64-unknown-linux-gnu",
                "--bin",
                &name,
                "--target-dir",
            ])
            .arg(&target)
            .arg("--")
            .arg(&corpus)
            .arg(format!("-max_total_time={seconds}"))
            .arg("-print_final_stats=1")
            .arg(format!("-artifact_prefix={}/", artifacts.display()))
            .current_dir(&dir)
            .env("RUSTFLAGS", INSTRUMENTATION)
            .status()
            .context("cannot start cargo")?;
        ensure!(status.success(), "{name} found something; the input is in {}", artifacts.display());
    }
    Ok(())
}
