use super::*;

const ADDR: u64 = 0xffff_8880_0123_4560;

fn run(bytes: &[u8], regs: &mut CpuUserRegs, old: u64) -> Option<u64> {
    let w = MemoryWrite::decode(regs, &Fetched::from_bytes(bytes), ADDR, |_| 0).expect("decodes");
    assert_eq!(usize::from(w.len), bytes.len());
    let effect = w.evaluate(regs, old);
    assert!(!w.retire(regs, &effect));
    effect.new
}

fn refused(bytes: &[u8], regs: &CpuUserRegs) -> WriteError {
    MemoryWrite::decode(regs, &Fetched::from_bytes(bytes), ADDR, |_| 0).expect_err("refused")
}

#[test]
fn the_instructions_that_linux_writes_page_tables_with() {
    // mov %rbp,(%rbx)
    let mut regs = CpuUserRegs { rbx: ADDR, rbp: 0x8000_0000_1234_5067, rip: 0x1000, ..Default::default() };
    assert_eq!(run(b"\x48\x89\x2b", &mut regs, 0), Some(0x8000_0000_1234_5067));
    assert_eq!(regs.rip, 0x1003);
    // xchg %rax,(%rbx)
    assert_eq!(run(b"\x48\x87\x03", &mut regs, 0x67), Some(0));
    assert_eq!(regs.rax, 0x67);
    // ds andb $0xfd,(%r12), as patched for one CPU, and with lock
    let mut regs = CpuUserRegs { r12: ADDR, rflags: 0x203, ..Default::default() };
    assert_eq!(run(b"\x3e\x41\x80\x24\x24\xfd", &mut regs, 0x67), Some(0x65));
    assert_eq!(regs.rflags, 0x206, "CF cleared, PF set");
    assert_eq!(run(b"\xf0\x41\x80\x24\x24\xfd", &mut regs, 0x67), Some(0x65));
    // lock cmpxchg %rdx,(%rdi): success, then failure
    let mut regs = CpuUserRegs { rdi: ADDR, rax: 5, rdx: 9, ..Default::default() };
    assert_eq!(run(b"\xf0\x48\x0f\xb1\x17", &mut regs, 5), Some(9));
    assert_eq!(regs.rflags & 0x40, 0x40);
    assert_eq!(run(b"\xf0\x48\x0f\xb1\x17", &mut regs, 7), None);
    assert_eq!((regs.rax, regs.rflags & 0x40), (7, 0));
    // lock btr $5,(%rdi)
    assert_eq!(run(b"\xf0\x48\x0f\xba\x37\x05", &mut regs, 0x67), Some(0x47));
    assert_eq!(regs.rflags & 1, 1);
}

#[test]
fn a_bit_number_in_a_register_moves_the_operand() {
    // bts %rcx,-8(%rdi): bit 64 is bit 0 of the next word
    let mut regs = CpuUserRegs { rdi: ADDR, rcx: 64, ..Default::default() };
    assert_eq!(run(b"\x48\x0f\xab\x4f\xf8", &mut regs, 0), Some(1));
    // bts %ecx,8(%rdi): bit -64 is bit 0 eight bytes down; the register's upper half does not count
    regs.rcx = 0xffff_ffc0;
    assert_eq!(run(b"\x0f\xab\x4f\x08", &mut regs, 0), Some(1));
}

#[test]
fn rip_relative_and_segment_addresses() {
    // movq $0x10,0x100(%rip): the displacement counts from the end of the instruction, immediate included
    let insn = b"\x48\xc7\x05\x00\x01\x00\x00\x10\x00\x00\x00";
    let mut regs = CpuUserRegs { rip: ADDR - 0x100 - 11, ..Default::default() };
    assert_eq!(run(insn, &mut regs, 0), Some(0x10));
    // mov %rax,%gs:(%rbx)
    let regs = CpuUserRegs { rbx: 0x60, ..Default::default() };
    let w = MemoryWrite::decode(&regs, &Fetched::from_bytes(b"\x65\x48\x89\x03"), ADDR, |s| {
        assert_eq!(s, Segment::Gs);
        ADDR - 0x60
    });
    assert_eq!(w.unwrap().addr, ADDR);
}

#[test]
fn stos_takes_one_step_at_a_time() {
    let mut regs = CpuUserRegs { rdi: ADDR, rcx: 2, rax: 7, rip: 0x1000, ..Default::default() };
    assert_eq!(run(b"\xf3\x48\xab", &mut regs, 0), Some(7));
    assert_eq!((regs.rdi, regs.rcx, regs.rip), (ADDR + 8, 1, 0x1000));
    regs.rdi = ADDR;
    regs.rflags = 0x400;
    assert_eq!(run(b"\xf3\x48\xab", &mut regs, 0), Some(7));
    assert_eq!((regs.rdi, regs.rcx, regs.rip), (ADDR - 8, 0, 0x1003));
}

#[test]
fn single_step_is_reported_and_rf_cleared() {
    let mut regs = CpuUserRegs { rbx: ADDR, rflags: 0x1_0302, ..Default::default() };
    let w = MemoryWrite::decode(&regs, &Fetched::from_bytes(b"\x48\x89\x03"), ADDR, |_| 0).unwrap();
    let effect = w.evaluate(&regs, 0);
    assert!(w.retire(&mut regs, &effect));
    assert_eq!(regs.rflags, 0x302);
}

#[test]
fn what_is_not_emulated() {
    let regs = CpuUserRegs { rbx: ADDR, ..Default::default() };
    let unsupported = WriteError::Decode(DecodeError::Unsupported);
    let cases: &[(&[u8], &str)] = &[
        (b"\xf0\x48\x89\x03", "lock mov"),
        (b"\x48\x0f\xc7\x0b", "cmpxchg16b"),
        (b"\x48\x39\x03", "cmp"),
        (b"\x80\x3b\x00", "cmp with immediate"),
        (b"\xf6\x03\x00", "test"),
        (b"\x0f\x11\x03", "movups"),
        (b"\x48\x89\xd8", "register destination"),
        (b"\x66\x0f\xc3\x03", "movnti with 66"),
        (b"\x67\x48\xab", "stos with edi"),
    ];
    for (bytes, what) in cases {
        assert_eq!(refused(bytes, &regs), unsupported, "{what}");
    }
    assert_eq!(refused(b"\x48\x89\x43\x08", &regs), WriteError::OtherAddress);
    assert_eq!(refused(b"\x48\x89\x43\x04", &regs), WriteError::Misaligned);
    assert_eq!(refused(b"\x48\x89", &regs), WriteError::Decode(DecodeError::Fetch(2)));
    assert_eq!(refused(&[0x66; 15], &regs), WriteError::Decode(DecodeError::TooLong));
}
