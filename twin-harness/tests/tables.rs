//! Tables that the kernel's code reaches by an index as base and the table's address as displacement, read by twins in
//! all modes.

use std::collections::BTreeMap;
use twin_abi::layout::{
    CALL_TABLE_OFFSET, CODE_OFFSET, CONST_OFFSET, CTX_OFFSET, IMPORT_OFFSET, STACK_SIZE, STLB_OFFSET,
};
use twin_harness::cpu::{Bus, BusFault, CodeSpace, Cpu, Stop};
use twin_harness::rig::{make, HOLE};
use twin_rewrite::module::{Function, Module, Section};
use twin_rewrite::options::{Mode, Options, Reuse};
use twin_runtime::addresses::Addresses;
use twin_runtime::instance::{Areas, Config};

const TEXT: u64 = 0xffff_ffff_c020_1000;
const DATA: u64 = 0xffff_ffff_c020_3000;
const INSTANCE: u64 = 0x7000_0000_0000;
const STACK: u64 = 0x7100_0000_0000;
const PAIRS: u64 = 0x7200_0000_0000;
const GATES: u64 = 0x7300_0000_0000;
const RETURN: u64 = 0x7fff_dead_0000;
const MASK_BITS: u32 = 46;

/// Pages of memory, by address.
#[derive(Default)]
struct Pages(BTreeMap<u64, Vec<u8>>);

impl Pages {
    fn put(&mut self, address: u64, bytes: &[u8]) {
        for (n, page) in bytes.chunks(4096).enumerate() {
            let mut page = page.to_vec();
            page.resize(4096, 0);
            self.0.insert(address + 4096 * n as u64, page);
        }
    }

    fn byte(&mut self, address: u64, write: bool) -> Result<&mut u8, BusFault> {
        let page = self.0.get_mut(&(address & !4095)).ok_or(BusFault { address, write })?;
        Ok(&mut page[(address % 4096) as usize])
    }
}

impl Bus for Pages {
    fn read(&mut self, address: u64, size: usize) -> Result<u64, BusFault> {
        (0..size as u64)
            .try_fold(0, |sum, n| Ok(sum | u64::from(*self.byte(address.wrapping_add(n), false)?) << (8 * n)))
    }
    fn write(&mut self, address: u64, size: usize, value: u64) -> Result<(), BusFault> {
        for n in 0..size as u64 {
            *self.byte(address.wrapping_add(n), true)? = (value >> (8 * n)) as u8;
        }
        Ok(())
    }
}

/// What the only function of `code` returns when it is called with these in `rdi` and `rsi`, in a twin of these
/// options. Byte `n` of the module's data is `n`.
fn run(code: &[u8], options: &Options, rdi: u64, rsi: u64) -> Result<u64, Stop> {
    let data: Vec<u8> = (0..=255).collect();
    let section = |name: &str, address, bytes: &[u8], executable| Section {
        name: name.into(),
        address,
        bytes: bytes.to_vec(),
        executable,
        writable: !executable,
    };
    let module = Module {
        name: "table".into(),
        functions: vec![Function { address: TEXT, len: code.len() as u64, name: "f".into() }],
        sections: vec![section(".text", TEXT, code, true), section(".data", DATA, &data, false)],
        ..Module::default()
    };
    let made = make(&module, options).expect("rewritten");
    assert_eq!(made.output.refused, []);
    let verified = made.verified().expect("accepted");
    let addresses = Addresses::new(verified.image()).expect("addresses");
    let config = Config {
        base: INSTANCE,
        stack: STACK,
        unsafe_area: 0x1000_0000,
        stlb_miss: GATES,
        icall: GATES + 16,
        warn: GATES + 32,
        hole: HOLE,
        ..Config::default()
    };
    let areas = Areas::new(&verified, &addresses, &config).expect("areas");
    let mut pages = Pages::default();
    for (offset, bytes) in [
        (CTX_OFFSET, &areas.context),
        (CONST_OFFSET, &areas.constants),
        (IMPORT_OFFSET, &areas.imports),
        (CALL_TABLE_OFFSET, &areas.call_table),
        (STLB_OFFSET, &areas.stlb),
    ] {
        pages.put(INSTANCE + u64::from(offset), bytes);
    }
    pages.put(STACK, &[0; STACK_SIZE as usize]);
    match options.mode {
        Mode::Mirror => pages.put(DATA & ((1 << MASK_BITS) - 1), &data),
        Mode::Stlb => {
            pages.put(PAIRS, &data);
            let entry = INSTANCE + u64::from(STLB_OFFSET) + (DATA >> 12 & 4095) * 16;
            pages.write(entry, 8, DATA).expect("an entry");
            pages.write(entry + 8, 8, PAIRS).expect("an entry");
        }
    }
    let mut cpu = Cpu::default();
    pages.write(INSTANCE + u64::from(CTX_OFFSET + twin_abi::layout::ctx::BUDGET), 8, 1000).expect("a budget");
    (cpu.regs[4], cpu.regs[6], cpu.regs[7]) = (config.entry_stack() - 8, rsi, rdi);
    pages.write(cpu.regs[4], 8, RETURN).expect("a stack");
    let start = verified.image().functions().iter().next().expect("a function").start;
    let mut space = CodeSpace::new(INSTANCE + u64::from(CODE_OFFSET), verified.image().code().to_vec());
    cpu.rip = space.base() + u64::from(start);
    match cpu.run(&mut space, &mut pages, 1000) {
        Stop::Outside(RETURN) => Ok(cpu.regs[0]),
        other => Err(other),
    }
}

#[test]
fn an_index_as_base_finds_its_table() {
    let table = (DATA as u32).to_le_bytes();
    // mov edx,esi; movzx eax,byte [rdx+table]; ret
    let bytes = [&[0x89, 0xf2, 0x0f, 0xb6, 0x82][..], &table, &[0xc3]].concat();
    // mov eax,edi; movzx eax,word [rax+rax+table]; ret
    let words = [&[0x89, 0xf8, 0x0f, 0xb7, 0x84, 0x00][..], &table, &[0xc3]].concat();
    // movzx ecx,byte [rdi]; movzx eax,byte [rcx+table]; movzx edx,byte [rcx+table+1]; add eax,edx; ret
    let next = (DATA as u32 + 1).to_le_bytes();
    let both = [&[0x0f, 0xb6, 0x0f, 0x0f, 0xb6, 0x81][..], &table, &[0x0f, 0xb6, 0x91], &next, &[0x01, 0xd0, 0xc3]];
    let both = both.concat();
    for mode in [Mode::Mirror, Mode::Stlb] {
        for reuse in [Reuse::Access, Reuse::Block, Reuse::Flow] {
            for (bmi, counted) in [(true, true), (true, false), (false, true), (false, false)] {
                let o = Options { mask_bits: MASK_BITS, reuse, bmi, counted, ..Options::new(mode) };
                assert_eq!(run(&bytes, &o, 0, 0x35), Ok(0x35), "{o:?}");
                assert_eq!(run(&words, &o, 0x10, 0), Ok(0x2120), "{o:?}");
                assert_eq!(run(&both, &o, DATA + 0x40, 0), Ok(0x81), "{o:?}");
            }
        }
    }
}
