use super::*;
use crate::emul::oracle::{Call, Recorder};
use std::vec;
use std::vec::Vec;

fn regs() -> CpuUserRegs {
    CpuUserRegs { rip: 0x1000, rax: 0x1111_2222_3333_4444, rdx: 0xcfc, rflags: 0x202, ..Default::default() }
}

fn kernel(bytes: &[u8], regs: &mut CpuUserRegs) -> Vec<Call> {
    let mut m = Recorder::default();
    let rip = regs.rip;
    assert_eq!(emulate(regs, Mode::Long, true, &Fetched::from_bytes(bytes), &mut m), Outcome::Done, "{bytes:x?}");
    assert_eq!(regs.rip, rip + bytes.len() as u64, "{bytes:x?}");
    m.calls
}

#[test]
fn port_reads_and_their_registers() {
    let cases: [(&[u8], Call, u64); 6] = [
        (b"\xe4\x61", Call::In(0x61, 1), 0x1111_2222_3333_4484),
        (b"\xe4\xf0", Call::In(0xf0, 1), 0x1111_2222_3333_4484),
        (b"\xe5\x70", Call::In(0x70, 4), 0x8182_8384),
        (b"\xec", Call::In(0xcfc, 1), 0x1111_2222_3333_4484),
        (b"\x66\xed", Call::In(0xcfc, 2), 0x1111_2222_3333_8384),
        (b"\x48\xed", Call::In(0xcfc, 4), 0x8182_8384),
    ];
    for (bytes, call, rax) in cases {
        let mut r = regs();
        assert_eq!(kernel(bytes, &mut r), [call]);
        assert_eq!(r.rax, rax, "{bytes:x?}");
    }
}

#[test]
fn port_writes() {
    let mut r = regs();
    assert_eq!(kernel(b"\xe6\x43", &mut r), [Call::Out(0x43, 1, 0x44)]);
    assert_eq!(kernel(b"\xe7\x43", &mut r), [Call::Out(0x43, 4, 0x3333_4444)]);
    assert_eq!(kernel(b"\xee", &mut r), [Call::Out(0xcfc, 1, 0x44)]);
    assert_eq!(kernel(b"\x66\xef", &mut r), [Call::Out(0xcfc, 2, 0x4444)]);
    assert_eq!(kernel(b"\xef", &mut r), [Call::Out(0xcfc, 4, 0x3333_4444)]);
}

#[test]
fn string_io_a_page_at_a_time() {
    let mut m = Recorder { memory: *b"0123456789abcdef", ..Default::default() };
    let mut r = CpuUserRegs { rsi: 0xffc, rdi: 8, rcx: 4, rdx: 0x1f0, ..Default::default() };
    let mut go = |bytes: &[u8], r: &mut CpuUserRegs| {
        assert_eq!(emulate(r, Mode::Long, true, &Fetched::from_bytes(bytes), &mut m), Outcome::Done);
    };
    go(b"\xf3\x66\x6f", &mut r);
    assert_eq!((r.rsi, r.rcx, r.rip), (0x1000, 2, 0), "to the end of the page");
    go(b"\xf3\x66\x6f", &mut r);
    assert_eq!((r.rsi, r.rcx, r.rip), (0x1004, 0, 3));
    go(b"\xf3\x6d", &mut r);
    assert_eq!((r.rdi, r.rip), (8, 5), "counter is zero: nothing happens");
    r.rflags = 0x400;
    go(b"\x6d", &mut r);
    assert_eq!((r.rdi, r.rip), (4, 6));
    let out = |value| Call::Out(0x1f0, 2, value);
    assert_eq!(m.calls, [out(0x6463), out(0x6665), out(0x3130), out(0x3332), Call::In(0x1f0, 4)]);
    assert_eq!(&m.memory[8..12], b"\xa4\x83\x82\x81");
}

#[test]
fn string_io_gives_way_after_so_many_iterations() {
    let mut m = Recorder::default();
    let mut r = CpuUserRegs { rcx: 1000, ..Default::default() };
    for left in [744, 488, 232, 0] {
        assert_eq!(r.rip, 0);
        emulate(&mut r, Mode::Long, true, &Fetched::from_bytes(b"\xf3\x6c"), &mut m);
        assert_eq!(r.rcx, left);
    }
    assert_eq!((r.rdi, r.rip, m.calls.len()), (1000, 2, 1000));
}

#[test]
fn string_io_single_steps() {
    let mut r = CpuUserRegs { rcx: 3, rflags: 0x102, ..Default::default() };
    let step = emulate(&mut r, Mode::Long, true, &Fetched::from_bytes(b"\xf3\x6c"), &mut Recorder::default());
    assert_eq!((step, r.rcx, r.rip), (Outcome::SingleStep, 2, 0));
}

#[test]
fn a_fault_in_the_middle_keeps_what_was_done() {
    let mut m = Recorder { absent_page: Some(1), ..Default::default() };
    let mut r = CpuUserRegs { rdi: 0xffd, rcx: 4, ..Default::default() };
    let mut go = |r: &mut CpuUserRegs| emulate(r, Mode::Long, true, &Fetched::from_bytes(b"\xf3\x66\x6d"), &mut m);
    assert_eq!(go(&mut r), Outcome::Done);
    assert_eq!((r.rdi, r.rcx, r.rip), (0xfff, 3, 0));
    assert_eq!(go(&mut r), Outcome::Inject(Exception::page_fault(0x1000, 2)), "of two bytes the second");
    assert_eq!((r.rdi, r.rcx, r.rip), (0xfff, 3, 0));
    assert_eq!(m.calls.len(), 1, "the port was not read for nothing");
}

#[test]
fn a_fault_in_ins_comes_before_the_port_is_read() {
    let fault = Exception::page_fault(8, 2);
    let mut m = Recorder { fail: Some(fault), ..Default::default() };
    let mut r = CpuUserRegs { rdi: 8, ..Default::default() };
    assert_eq!(emulate(&mut r, Mode::Long, true, &Fetched::from_bytes(b"\x6c"), &mut m), Outcome::Inject(fault));
    assert_eq!(m.calls, []);
}

#[test]
fn system_instructions() {
    let mut r = CpuUserRegs { rax: 0xdead_0000_0007, rdx: 0xbeef_0000_0001, rcx: 0xc000_0101, ..regs() };
    assert_eq!(kernel(b"\x0f\x30", &mut r), [Call::Wrmsr(0xc000_0101, 0x1_0000_0007)]);
    assert_eq!(kernel(b"\x0f\x32", &mut r), [Call::Rdmsr(0xc000_0101)]);
    assert_eq!((r.rax, r.rdx), (0x9abc_def0, 0x1234_5678));
    r.rcx = 0;
    assert_eq!(kernel(b"\x0f\x01\xd1", &mut r), [Call::Xsetbv(0, 0x1234_5678_9abc_def0)]);
    assert_eq!(kernel(b"\x0f\x20\xd7", &mut r), [Call::ReadCr(2)]);
    assert_eq!(r.rdi, 0x8005_0033);
    assert_eq!(kernel(b"\x0f\x22\xe7", &mut r), [Call::WriteCr(4, 0x8005_0033)]);
    assert_eq!(kernel(b"\x44\x0f\x20\xc0", &mut r), [Call::ReadCr(8)]);
    assert_eq!(kernel(b"\x41\x0f\x21\xf8", &mut r), [Call::ReadDr(7)]);
    assert_eq!(r.r8, 0xffff_0ff0);
    assert_eq!(kernel(b"\x0f\x23\xff", &mut r), [Call::WriteDr(7, 0x8005_0033)]);
    assert_eq!(kernel(b"\x0f\x06", &mut r), [Call::Clts]);
    assert_eq!(kernel(b"\x0f\x09", &mut r), [Call::Wbinvd]);
    r.rax = 0x8;
    assert_eq!(kernel(b"\x0f\x01\xf0", &mut r), [Call::ReadCr(0), Call::WriteCr(0, 0x8005_0039)]);
    assert_eq!(kernel(b"\x0f\x31", &mut r), []);
    assert_eq!((r.rax, r.rdx), (0x2222_3333, 0x11));
    assert_eq!(kernel(b"\x0f\x01\xf9", &mut r), []);
    assert_eq!(r.rcx, 5);
    assert_eq!(kernel(b"\xfa", &mut r), []);
    assert_eq!(kernel(b"\xfb", &mut r), []);
}

#[test]
fn left_to_the_guest() {
    let cases: &[(&[u8], &str)] = &[
        (b"\xf4", "hlt"),
        (b"\x0f\x08", "invd"),
        (b"\x0f\x01\x38", "invlpg"),
        (b"\x0f\x01\xf8", "swapgs"),
        (b"\x0f\x33", "rdpmc"),
        (b"\x0f\x01\xc8", "monitor"),
        (b"\xf0\x0f\x22\xc0", "lock mov to cr0"),
        (b"\xcd\x80", "int 0x80"),
    ];
    for (bytes, what) in cases {
        let (mut r, mut m) = (regs(), Recorder::default());
        assert_eq!(
            emulate(&mut r, Mode::Long, true, &Fetched::from_bytes(bytes), &mut m),
            Outcome::Unhandled,
            "{what}"
        );
        assert_eq!((r, m.calls), (regs(), vec![]), "{what}");
    }
}

#[test]
fn user_code_gets_io_only_if_permitted_and_nothing_else() {
    let run = |bytes: &[u8], refuse_io, mode| {
        let mut m = Recorder { refuse_io, ..Default::default() };
        (emulate(&mut regs(), mode, false, &Fetched::from_bytes(bytes), &mut m), m.calls.len())
    };
    for mode in [Mode::Long, Mode::Compat32] {
        assert_eq!(run(b"\xec", false, mode), (Outcome::Done, 1));
        assert_eq!(run(b"\xec", true, mode), (Outcome::Inject(Exception::GP), 0));
        assert_eq!(run(b"\xfa", true, mode), (Outcome::Unhandled, 0));
        for bytes in [&b"\x0f\x32"[..], b"\x0f\x06", b"\x0f\x20\xc0", b"\x0f\x01\xd1", b"\x0f\x09"] {
            assert_eq!(run(bytes, false, mode), (Outcome::Unhandled, 0), "{bytes:x?}");
        }
    }
}

/// SGDT and its kin, which UMIP forbids to ring 3, kernel or user.
#[test]
fn stores_of_tables_hide_where_they_are() {
    let run = |bytes: &[u8], mode, kernel| {
        let mut m = Recorder::default();
        let mut r = CpuUserRegs { rax: 0x1111_2222_3333_4444, rbx: 0x5_0000_0004, rip: 0x1000, ..Default::default() };
        let outcome = emulate(&mut r, mode, kernel, &Fetched::from_bytes(bytes), &mut m);
        (outcome, r.rax, r.rip - 0x1000, m.memory)
    };
    let with = |at: usize, bytes: &[u8]| {
        let mut memory = Recorder::default().memory;
        memory[at..at + bytes.len()].copy_from_slice(bytes);
        memory
    };
    let rax = 0x1111_2222_3333_4444;
    for kernel in [false, true] {
        let long = |bytes: &[u8]| run(bytes, Mode::Long, kernel);
        // sgdt [4], sidt [4]
        let gdt = with(4, &[0, 0, 0, 0, 0xfe, 0xff, 0xff, 0xff, 0xff, 0xff]);
        assert_eq!(long(b"\x0f\x01\x04\x25\x04\0\0\0"), (Outcome::Done, rax, 8, gdt));
        let idt = with(4, &[0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]);
        assert_eq!(long(b"\x0f\x01\x0c\x25\x04\0\0\0"), (Outcome::Done, rax, 8, idt));
        // sldt [4], str eax, str ax, smsw rax, smsw eax, smsw [4]
        assert_eq!(long(b"\x0f\x00\x04\x25\x04\0\0\0").3, with(4, &[0x48, 0xe0]));
        assert_eq!(long(b"\x0f\x00\xc8"), (Outcome::Done, 0xe040, 3, with(0, &[])));
        assert_eq!(long(b"\x66\x0f\x00\xc8").1, 0x1111_2222_3333_e040);
        assert_eq!(long(b"\x48\x0f\x01\xe0").1, 0x8005_0033);
        assert_eq!(long(b"\x0f\x01\xe0").1, 0x8005_0033);
        assert_eq!(long(b"\x0f\x01\x24\x25\x04\0\0\0").3, with(4, &[0x33, 0]));
    }
    // 32-bit code: sgdt [ebx], sidt [4], str eax, and an address of 16 bits.
    let narrow = |bytes: &[u8]| run(bytes, Mode::Compat32, false);
    assert_eq!(narrow(b"\x0f\x01\x03"), (Outcome::Done, rax, 3, with(4, &[0, 0, 0, 0, 0xfe, 0xff])));
    assert_eq!(narrow(b"\x0f\x01\x0d\x04\0\0\0"), (Outcome::Done, rax, 7, with(4, &[0, 0, 0, 0, 0xff, 0xff])));
    assert_eq!(narrow(b"\x0f\x00\xc8").1, 0xe040);
    assert_eq!(narrow(b"\x67\x0f\x01\x07").0, Outcome::Unhandled);
    // What stores nothing: lldt, ltr, verr, lgdt, lidt, vmcall.
    for bytes in
        [&b"\x0f\x00\xd0"[..], b"\x0f\x00\xd8", b"\x0f\x00\xe0", b"\x0f\x01\x13", b"\x0f\x01\x1b", b"\x0f\x01\xc1"]
    {
        assert_eq!(run(bytes, Mode::Long, true).0, Outcome::Unhandled, "{bytes:x?}");
    }
    let mut absent = Recorder { absent_page: Some(0), ..Recorder::default() };
    let fault =
        emulate(&mut regs(), Mode::Long, false, &Fetched::from_bytes(b"\x0f\x01\x04\x25\x04\0\0\0"), &mut absent);
    assert!(matches!(fault, Outcome::Inject(Exception { cr2: 4, .. })), "{fault:?}");
}

#[test]
fn forced_cpuid() {
    let mut r = CpuUserRegs { rax: 0x1_4000_0000, rcx: 7, rip: 0x1000, ..Default::default() };
    let mut m = Recorder::default();
    assert_eq!(forced(&mut r, &Fetched::from_bytes(b"\x0f\x0bxen\x0f\xa2\x90"), &mut m), Outcome::Done);
    assert_eq!((r.rax, r.rbx, r.rcx, r.rdx, r.rip), (0x4000_0000, 7, 3, 4, 0x1007));
    let go = |bytes: &[u8]| forced(&mut regs(), &Fetched::from_bytes(bytes), &mut Recorder::default());
    assert_eq!(go(b"\x0f\x0b"), Outcome::Inject(Exception::fetch_fault(0x1002)), "the signature is on an absent page");
    assert_eq!(go(b"\x0f\x0bxen\x0f\xa3"), Outcome::Unhandled);
    assert_eq!(go(b"\x0f\x0bxem\x0f\xa2"), Outcome::Unhandled);
    assert_eq!(go(b"\x0f\xff"), Outcome::Unhandled);
}

#[test]
fn software_interrupts_need_the_privilege_level() {
    let int80 = 0x80 << 3 | 2;
    assert_eq!(software_interrupt(int80, 3, |v| (v == 0x80).then_some(3)), Some(0x80));
    assert_eq!(software_interrupt(int80, 3, |_| Some(1)), None);
    assert_eq!(software_interrupt(int80, 1, |_| Some(1)), Some(0x80));
    assert_eq!(software_interrupt(int80, 3, |_| None), None);
    assert_eq!(software_interrupt(0x28, 3, |_| Some(3)), None, "a selector, not a gate");
}

#[test]
fn compat_rip_wraps_at_four_gib() {
    let mut r = CpuUserRegs { rip: 0xffff_ffff, ..regs() };
    assert_eq!(
        emulate(&mut r, Mode::Compat32, false, &Fetched::from_bytes(b"\xec"), &mut Recorder::default()),
        Outcome::Done
    );
    assert_eq!(r.rip, 0);
}

#[test]
fn what_cannot_be_fetched_is_a_page_fault_only_at_an_address_that_is_one() {
    let mut m = Recorder::default();
    let mut go = |rip| {
        let mut r = CpuUserRegs { rip, ..regs() };
        emulate(&mut r, Mode::Long, true, &Fetched::default(), &mut m)
    };
    assert_eq!(go(0x7fff_ffff_f000), Outcome::Inject(Exception::fetch_fault(0x7fff_ffff_f000)));
    assert_eq!([go(0x8000_0000_0000), go(0xffff_7fff_ffff_ffff)], [Outcome::Unhandled; 2], "the #GP as it came");
}

#[test]
fn a_control_register_that_takes_long_is_written_again() {
    let mut m = Recorder { cr_is_slow: true, ..Default::default() };
    // It single-steps, and has resumed from a breakpoint: neither is over.
    let before = CpuUserRegs { rflags: 0x1_0302, ..regs() };
    let mut r = before;
    let go =
        |m: &mut Recorder, r: &mut CpuUserRegs| emulate(r, Mode::Long, true, &Fetched::from_bytes(b"\x0f\x22\xd8"), m);
    assert_eq!((go(&mut m, &mut r), r), (Outcome::Again, before));
    m.cr_is_slow = false;
    assert_eq!((go(&mut m, &mut r), r.rip), (Outcome::SingleStep, before.rip + 3));
    assert_eq!(m.calls, [Call::WriteCr(3, before.rax); 2]);
    assert_eq!(emulate(&mut r, Mode::Long, false, &Fetched::from_bytes(b"\x0f\x22\xd8"), &mut m), Outcome::Unhandled);
}
