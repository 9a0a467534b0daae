//! `docs/abi.md`, made from the hypercall table and the handlers' documentation, so that it cannot drift from the code.

use anyhow::{bail, Context, Result};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

const TABLE: &str = "hv/src/hypercall/table.rs";
const HANDLERS: &str = "hv/src/hypercall";
const PAGE: &str = "docs/abi.md";
/// Registers that carry the arguments, in order.
const REGISTERS: [&str; 6] = ["rdi", "rsi", "rdx", "r10", "r8", "r9"];

/// One row of the hypercall table.
struct Row {
    number: u32,
    name: String,
    /// `name: Type` of each argument.
    arguments: Vec<(String, String)>,
    /// `file::function`, or nothing if the call is not served.
    handler: Option<(String, String)>,
}

/// Writes the page; with `check`, only says whether it is up to date.
pub fn run(check: bool) -> Result<bool> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let text = page(&root)?;
    let path = root.join(PAGE);
    if check {
        return Ok(std::fs::read_to_string(&path).is_ok_and(|old| old == text));
    }
    std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    println!("wrote {PAGE}");
    Ok(true)
}

fn page(root: &Path) -> Result<String> {
    let table = std::fs::read_to_string(root.join(TABLE)).with_context(|| format!("cannot read {TABLE}"))?;
    let mut out = String::from(
        "# Hypercalls\n\nMade from `hv/src/hypercall/table.rs` by `cargo xtask abi`; do not edit.\n\n\
         A hypercall is SYSCALL from guest-kernel mode with the number in `rax`. The result is in `rax`, negative error\n\
         numbers included; `rcx` and `r11` are lost, all other registers kept. Numbers that are not listed, and those marked\n\
         as not served, return `-ENOSYS`.\n\n| number | call | arguments |\n|---|---|---|\n",
    );
    let rows = rows(&table)?;
    for row in &rows {
        let arguments = if row.handler.is_none() {
            "not served".to_owned()
        } else if row.arguments.is_empty() {
            "none".to_owned()
        } else {
            let named =
                row.arguments.iter().zip(REGISTERS).map(|((name, _), register)| format!("{register} = `{name}`"));
            named.collect::<Vec<_>>().join(", ")
        };
        writeln!(out, "| {} | `{}` | {arguments} |", row.number, row.name)?;
    }
    for row in &rows {
        let Some((file, function)) = &row.handler else { continue };
        let source = source_of(root, file)?;
        let text = std::fs::read_to_string(&source).with_context(|| format!("cannot read {}", source.display()))?;
        let doc = documentation(&text, function).with_context(|| format!("{file}::{function} has no documentation"))?;
        writeln!(out, "\n## {} `{}`\n\n{doc}", row.number, row.name)?;
    }
    Ok(out)
}

fn source_of(root: &Path, module: &str) -> Result<PathBuf> {
    let dir = root.join(HANDLERS);
    [dir.join(format!("{module}.rs")), dir.join(module).join("mod.rs")]
        .into_iter()
        .find(|p| p.exists())
        .with_context(|| format!("no file for handler module {module}"))
}

/// The rows inside `hypercalls! { .. }`.
fn rows(table: &str) -> Result<Vec<Row>> {
    let mut rows = BTreeMap::new();
    let body = table.rsplit("hypercalls! {").next().unwrap_or("");
    for line in body.lines().map(str::trim).filter(|l| l.starts_with(|c: char| c.is_ascii_digit())) {
        let (head, handler) = line.split_once("=>").with_context(|| format!("not a row: {line}"))?;
        let (number, signature) = head.trim().split_once(' ').with_context(|| format!("not a row: {line}"))?;
        let (name, arguments) = match signature.trim().split_once('(') {
            Some((name, list)) => (name, list.trim_end().trim_end_matches(')')),
            None => (signature.trim(), ""),
        };
        let arguments = arguments
            .split(',')
            .filter_map(|a| a.split_once(':'))
            .map(|(name, ty)| (name.trim().to_owned(), ty.trim().to_owned()))
            .collect();
        let handler = handler.trim().trim_end_matches(';').trim();
        let handler = handler
            .rsplit_once("::")
            .map(|(file, function)| (file.rsplit("::").next().unwrap_or(file).to_owned(), function.to_owned()));
        let number: u32 = number.parse().with_context(|| format!("not a number: {line}"))?;
        let row = Row { number, name: name.trim().to_owned(), arguments, handler };
        if rows.insert(number, row).is_some() {
            bail!("hypercall {number} has two rows");
        }
    }
    if rows.is_empty() {
        bail!("no rows in {TABLE}");
    }
    Ok(rows.into_values().collect())
}

/// The `///` lines above `pub fn function`, as one paragraph per blank line.
fn documentation(source: &str, function: &str) -> Option<String> {
    let lines: Vec<&str> = source.lines().collect();
    let starts = |l: &str| {
        let rest = l.trim_start();
        let rest = rest
            .strip_prefix("pub(super) ")
            .or_else(|| rest.strip_prefix("pub(crate) "))
            .or_else(|| rest.strip_prefix("pub "));
        rest.and_then(|r| r.strip_prefix("fn "))
            .is_some_and(|r| r.strip_prefix(function).is_some_and(|after| after.starts_with(['(', '<'])))
    };
    let at = lines.iter().position(|l| starts(l))?;
    let mut doc: Vec<&str> = lines[..at]
        .iter()
        .rev()
        .take_while(|l| l.trim_start().starts_with("///") || l.trim_start().starts_with("#["))
        .filter_map(|l| l.trim_start().strip_prefix("///"))
        .map(|l| l.strip_prefix(' ').unwrap_or(l))
        .collect();
    doc.reverse();
    (!doc.is_empty()).then(|| doc.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_is_up_to_date() {
        assert!(run(true).unwrap(), "docs/abi.md is out of date: run `cargo xtask abi`");
    }

    /// Callers have the numbers from there.
    #[test]
    fn each_row_has_the_number_that_callers_use() {
        let read = |file: &str| std::fs::read_to_string(testbed::host::root().join(file)).unwrap();
        let numbers = |file: &str, prefix: &str| -> BTreeMap<String, u32> {
            let of = |line: &str| {
                let (name, number) = line.strip_prefix(prefix)?.split_once(" = ")?;
                let name = name.split_once(':')?.0.to_lowercase();
                Some((name, number.trim_end_matches(';').parse().ok()?))
            };
            read(file).lines().filter_map(of).collect()
        };
        let mut wanted = numbers("xen-abi/src/hypercall.rs", "pub const ");
        for file in ["twin-abi/src/op.rs", "xen-abi/src/channel_op.rs"] {
            let own = numbers(file, "pub const HYPERVISOR_");
            assert_eq!(own.len(), 1, "{file}");
            wanted.extend(own);
        }
        let there: BTreeMap<_, _> = rows(&read(TABLE)).unwrap().into_iter().map(|row| (row.name, row.number)).collect();
        assert_eq!(there, wanted);
    }

    #[test]
    fn rows_carry_arguments_and_handlers() {
        let rows = rows("macro_rules! hypercalls {}\nhypercalls! {\n  5 five(a: u32, b: GuestPtr<u8>) => file::call;\n  6 six => unsupported;\n}\n").unwrap();
        assert_eq!(rows.len(), 2);
        assert_eq!(rows[0].arguments[1], ("b".into(), "GuestPtr<u8>".into()));
        assert_eq!(rows[0].handler, Some(("file".into(), "call".into())));
        assert!(rows[1].handler.is_none());
    }

    #[test]
    fn a_number_may_have_one_row_only() {
        assert!(rows("hypercalls! {\n 5 a => unsupported;\n 5 b => unsupported;\n}").is_err());
    }
}
