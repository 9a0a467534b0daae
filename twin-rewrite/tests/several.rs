//! One twin of several modules.

use twin_abi::image::Image;
use twin_rewrite::module::{Externs, Function, Module, Section};
use twin_rewrite::options::{Mode, Options};
use twin_rewrite::rewrite::rewrite;

const UPPER: u64 = 0xffff_ffff_c020_0000;
const LOWER: u64 = 0xffff_ffff_c010_0000;

fn module(name: &str, address: u64, bytes: &[u8], function: &str) -> Module {
    let bytes = bytes.to_vec();
    Module {
        name: name.into(),
        functions: vec![Function { address, len: bytes.len() as u64, name: function.into() }],
        sections: vec![Section { name: ".text".into(), address, bytes, executable: true, writable: false }],
        ..Module::default()
    }
}

/// `send`: calls `add` of the other module, and returns.
fn upper() -> Module {
    let distance = (LOWER.wrapping_sub(UPPER + 5)) as u32;
    let mut bytes = vec![0xe8];
    bytes.extend(distance.to_le_bytes());
    bytes.push(0xc3);
    module("upper", UPPER, &bytes, "send")
}

/// `add`: reads a word and returns.
fn lower() -> Module {
    module("lower", LOWER, &[0x48, 0x8b, 0x07, 0xc3], "add")
}

fn externs(symbols: &[(u64, &str)]) -> Externs {
    let mut externs = Externs::default();
    symbols.iter().for_each(|(address, name)| externs.add(*address, name));
    externs
}

#[test]
fn what_one_calls_of_the_other_is_a_call_inside() {
    let alone = Module { externs: externs(&[(LOWER, "add")]), ..upper() };
    let alone = rewrite(&alone, &Options::new(Mode::Mirror)).expect("rewritten");
    assert_eq!(alone.imports, [("add".to_owned(), LOWER)]);
    for parts in [vec![upper(), lower()], vec![lower(), upper()]] {
        let joined = Module::join(parts, Externs::default());
        let output = rewrite(&joined, &Options::new(Mode::Mirror)).expect("rewritten");
        assert_eq!((output.functions, output.refused.len(), output.imports.len()), (2, 0, 0));
        let image = Image::parse(&output.image).expect("well formed");
        let domains: Vec<u64> = image.functions().iter().map(|f| f.domain).collect();
        assert_eq!(domains, [LOWER, UPPER]);
        assert_eq!((image.text, image.text_bytes), (LOWER, UPPER + 6 - LOWER));
    }
}

/// Each module says of its own faults which are warnings.
#[test]
fn each_has_a_table_of_warnings() {
    let with_table = |mut m: Module| {
        let address = m.sections[0].address;
        let mut bytes = vec![0; 12];
        bytes[..4].copy_from_slice(&(-0x1000i32 + 2).to_le_bytes());
        bytes[10] = 1;
        let table = Section {
            name: "__bug_table".into(),
            address: address + 0x1000,
            bytes,
            executable: false,
            writable: false,
        };
        m.sections.push(table);
        m
    };
    let joined = Module::join(vec![with_table(upper()), with_table(lower())], Externs::default());
    assert!(joined.is_warning(LOWER + 2) && joined.is_warning(UPPER + 2) && !joined.is_warning(UPPER + 3));
    assert_eq!(joined.check(), Ok(()));
    assert_eq!(joined.name, "upper+lower");
}
