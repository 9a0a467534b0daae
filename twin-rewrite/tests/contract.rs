//! Small functions, written as bytes: what becomes of them, and that the verifier accepts it in every mode.

use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic, Register};
use twin_abi::kind::Kind;
use twin_abi::Image;
use twin_rewrite::module::{bound_functions, Function, Module, Section};
use twin_rewrite::options::{Mode, Options, Reuse};
use twin_rewrite::rewrite::{rewrite, rewrite_judged, Output};

const TEXT: u64 = 0xffff_ffff_c020_1000;
const DATA: u64 = 0xffff_ffff_c020_3000;
const OUTSIDE: u64 = 0xffff_ffff_8100_0000;

/// A module of functions one after the other, with a symbol outside and some data.
fn module(functions: &[(&str, &[u8])]) -> Module {
    let mut m = Module { name: "small".into(), ..Module::default() };
    let mut bytes = Vec::new();
    for (name, code) in functions {
        let address = TEXT + bytes.len() as u64;
        m.functions.push(Function { address, len: code.len() as u64, name: (*name).to_owned() });
        bytes.extend(*code);
        bytes.resize(bytes.len().next_multiple_of(16), 0xcc);
    }
    m.sections.push(Section { name: ".text".into(), address: TEXT, bytes, executable: true, writable: false });
    m.sections.push(Section {
        name: ".data".into(),
        address: DATA,
        bytes: vec![0; 64],
        executable: false,
        writable: true,
    });
    bound_functions(&mut m.functions, &m.sections);
    m.externs.add(OUTSIDE, "printk");
    m
}

fn all_options() -> Vec<Options> {
    let mut out = Vec::new();
    for mode in [Mode::Mirror, Mode::Stlb] {
        for reuse in [Reuse::Access, Reuse::Block, Reuse::Flow] {
            for bmi in [true, false] {
                out.push(Options { reuse, bmi, ..Options::new(mode) });
                out.push(Options { reuse, bmi, counted: true, ..Options::new(mode) });
            }
        }
    }
    out
}

fn policy(o: &Options) -> twin_verify::Policy {
    let mirror = o.mode == Mode::Mirror;
    twin_verify::Policy {
        mode: if mirror { twin_abi::image::Mode::Mirror } else { twin_abi::image::Mode::Stlb },
        mask_bits: if mirror { o.mask_bits } else { 0 },
        counted: o.counted,
        bmi: o.bmi,
    }
}

/// Rewrites in all modes; everything must be accepted and nothing refused. Returns the output of the usual mirror mode.
fn accepted(functions: &[(&str, &[u8])]) -> Output {
    let m = module(functions);
    let mut usual = None;
    for o in all_options() {
        let out = rewrite(&m, &o).unwrap();
        assert_eq!(out.refused, [], "{o:?}");
        twin_verify::verify(&out.image, &policy(&o)).map_err(|e| format!("{e} with {o:?}")).unwrap();
        if o.mode == Mode::Mirror && o.bmi && !o.counted && o.reuse == Reuse::Flow {
            usual = Some(out);
        }
    }
    usual.unwrap()
}

/// The reason for which the only function is refused.
fn refused(code: &[u8]) -> String {
    let m = module(&[("bad", code), ("good", &[0xc3])]);
    let out = rewrite(&m, &Options::new(Mode::Mirror)).unwrap();
    assert_eq!(out.refused.len(), 1);
    assert_eq!(out.refused[0].function, "bad");
    out.refused[0].reason.clone()
}

#[test]
fn one_translation_serves_all_accesses_through_a_base() {
    // mov rax,[rdi+8]; mov [rdi+16],rax; mov ecx,[rdi]; ret
    let out = accepted(&[("f", &[0x48, 0x8b, 0x47, 8, 0x48, 0x89, 0x47, 16, 0x8b, 0x0f, 0xc3])]);
    assert_eq!((out.counts.masks_emitted, out.counts.masks_elided), (1, 2));
    assert_eq!((out.counts.insns_in, out.counts.insns_out), (4, 5));
}

#[test]
fn a_translation_does_not_outlive_its_base() {
    // mov rax,[rdi]; mov rdi,rax; mov rcx,[rdi]; ret
    let out = accepted(&[("f", &[0x48, 0x8b, 0x07, 0x48, 0x89, 0xc7, 0x48, 0x8b, 0x0f, 0xc3])]);
    assert_eq!(out.counts.masks_emitted, 2);
}

#[test]
fn a_translation_is_not_used_where_one_way_lacks_it() {
    // test esi,esi; je 1f; mov eax,[rdi]; 1: mov ecx,[rdi]; add eax,ecx; ret
    let code = [0x85, 0xf6, 0x74, 0x02, 0x8b, 0x07, 0x8b, 0x0f, 0x01, 0xc8, 0xc3];
    let out = accepted(&[("f", &code)]);
    assert_eq!(out.counts.masks_emitted, 2);
}

#[test]
fn a_variable_whose_address_is_taken_moves_to_the_unsafe_area() {
    // sub rsp,16; lea rdi,[rsp+8]; mov dword [rsp+8],5; call printk; mov eax,[rsp+8]; add rsp,16; ret
    let call = (OUTSIDE as i64 - (TEXT as i64 + 22)) as i32;
    let mut code = vec![0x48, 0x83, 0xec, 16, 0x48, 0x8d, 0x7c, 0x24, 8, 0xc7, 0x44, 0x24, 8, 5, 0, 0, 0, 0xe8];
    code.extend(call.to_le_bytes());
    code.extend([0x8b, 0x44, 0x24, 8, 0x48, 0x83, 0xc4, 16, 0xc3]);
    let out = accepted(&[("f", &code)]);
    assert_eq!(out.counts.unsafe_slots, 3);
    assert_eq!(out.imports, [("printk".to_owned(), OUTSIDE)]);
}

#[test]
fn a_lock_that_one_cpu_did_without_comes_back() {
    // ds bts qword [rdi],3; ret
    let out = accepted(&[("f", &[0x3e, 0x48, 0x0f, 0xba, 0x2f, 3, 0xc3])]);
    let image = Image::parse(&out.image).unwrap();
    assert!(image.code().windows(2).any(|w| w[0] == 0xf0), "{:x?}", image.code());
}

#[test]
fn data_of_the_module_is_reached_by_its_own_address() {
    // mov eax,[rip+data]; lea rdi,[rip+data]; ret
    let at = |end: u64| ((DATA as i64 - (TEXT + end) as i64) as i32).to_le_bytes();
    let code = [&[0x8b, 0x05][..], &at(6), &[0x48, 0x8d, 0x3d], &at(13), &[0xc3]].concat();
    accepted(&[("f", &code)]);
}

#[test]
fn calls_jumps_and_indirect_calls_are_bound() {
    let call = (-21i32).to_le_bytes();
    // g: call f; call rax; jmp f
    let g = [&[0xe8][..], &call, &[0xff, 0xd0, 0xe9], &(-28i32).to_le_bytes()].concat();
    let out = accepted(&[("f", &[0xc3]), ("g", &g)]);
    assert_eq!(out.counts.indirect_sites, 1);
    assert_eq!(Image::parse(&out.image).unwrap().addresses().len(), 2);
}

#[test]
fn string_instructions_are_bounded() {
    // mov ecx,512; xor eax,eax; rep stosq; ret, and a copy after which the pointers are used again
    let copy = [0x48, 0x89, 0xf9, 0xb9, 4, 0, 0, 0, 0xf3, 0xa4, 0x48, 0x89, 0xf8, 0xc3];
    accepted(&[("f", &[0xb9, 0, 2, 0, 0, 0x31, 0xc0, 0xf3, 0x48, 0xab, 0xc3]), ("g", &copy)]);
}

#[test]
fn bit_strings_find_their_word_first() {
    // lock bts [rdi],rsi; setc al; ret
    accepted(&[("f", &[0xf0, 0x48, 0x0f, 0xab, 0x37, 0x0f, 0x92, 0xc0, 0xc3])]);
}

#[test]
fn flags_survive_translation_in_between() {
    // cmp esi,1; mov eax,[rdi]; je 1f; xor eax,eax; 1: ret
    accepted(&[("f", &[0x83, 0xfe, 1, 0x8b, 0x07, 0x74, 2, 0x31, 0xc0, 0xc3])]);
}

#[test]
fn a_frame_pointer_is_followed() {
    // push rbp; mov rbp,rsp; push rbx; mov rbx,rdi; mov eax,[rbx]; mov rbx,[rbp-8]; leave; ret
    let code = [0x55, 0x48, 0x89, 0xe5, 0x53, 0x48, 0x89, 0xfb, 0x8b, 0x03, 0x48, 0x8b, 0x5d, 0xf8, 0xc9, 0xc3];
    accepted(&[("f", &code)]);
}

#[test]
fn what_cannot_be_part_of_a_twin_is_refused_by_name_and_reason() {
    assert!(refused(&[0xf4, 0xc3]).contains("Hlt"));
    assert!(refused(&[0x0f, 0x30, 0xc3]).contains("wrmsr") || refused(&[0x0f, 0x30, 0xc3]).contains("Wrmsr"));
    assert!(refused(&[0x0f, 0x28, 0xc1, 0xc3]).contains("Movaps"));
    assert!(refused(&[0xfa, 0xc3]).contains("Cli"));
    assert!(refused(&[0x48, 0x89, 0xc4, 0xc3]).contains("stack pointer"));
    assert!(refused(&[0xff, 0x24, 0xc7]).contains("jump through memory"));
    assert!(refused(&[0x06, 0xc3]).contains("not an instruction"));
    assert!(refused(&[0x50, 0xc3]).contains("on the stack"));
    assert!(refused(&[0xeb, 0xff, 0xc0, 0xc3]).contains("middle"));
    // je 1f; mov eax,imm32 with 1: inside, so that the inner instruction is found first.
    assert!(refused(&[0x74, 1, 0xb8, 0x90, 0x90, 0x90, 0xc3]).contains("middle"));
}

#[test]
fn a_refused_function_is_called_where_it_is() {
    // g: call f; ret, with f refused
    let g = [&[0xe8][..], &(-21i32).to_le_bytes(), &[0xc3]].concat();
    let m = module(&[("f", &[0xf4, 0xc3]), ("g", &g)]);
    let out = rewrite(&m, &Options::new(Mode::Mirror)).unwrap();
    assert_eq!(out.refused.len(), 1);
    assert_eq!(out.imports, [("f".to_owned(), TEXT)]);
    twin_verify::verify(&out.image, &policy(&Options::new(Mode::Mirror))).unwrap();
}

#[test]
fn loops_and_callers_are_charged_where_the_budget_is_counted() {
    // f: mov ecx,10; back: dec ecx; jnz back; ret. g: call f; ret. h: ret
    let f: &[u8] = &[0xb9, 10, 0, 0, 0, 0xff, 0xc9, 0x75, 0xfc, 0xc3];
    let g: &[u8] = &[0xe8, 0xeb, 0xff, 0xff, 0xff, 0xc3];
    let m = module(&[("f", f), ("g", g), ("h", &[0xc3])]);
    let out = rewrite(&m, &Options { counted: true, ..Options::new(Mode::Mirror) }).unwrap();
    let image = Image::parse(&out.image).unwrap();
    let charges = image.labels().iter().filter(|l| l.state & twin_abi::image::LABEL_CHARGE != 0);
    // The loop's head and the caller's entry; the leaf has none.
    let functions: Vec<_> = charges.map(|l| image.function_at(l.offset).map(|f| f.domain - TEXT)).collect();
    assert_eq!(functions, [Some(0), Some(16)]);
    assert_eq!(out.counts.insns_out, 4 + 3 + 2 + 3 + 1);
    accepted(&[("f", f), ("g", g), ("h", &[0xc3])]);
}

#[test]
fn a_charge_keeps_flags_that_a_loop_hands_on() {
    // xor ecx,ecx; cmp edi,esi; back: lea ecx,[rcx+1]; jl done; cmp ecx,edi; jmp back; done: ret
    let code: &[u8] = &[0x31, 0xc9, 0x39, 0xf7, 0x8d, 0x49, 1, 0x7c, 4, 0x39, 0xf9, 0xeb, 0xf7, 0xc3];
    accepted(&[("f", code)]);
}

/// An image of one function in mirror mode, and how many functions of it were refused.
fn mirrored(code: &[u8]) -> (Vec<u8>, usize) {
    let out = rewrite(&module(&[("f", code), ("g", &[0xc3])]), &Options::new(Mode::Mirror)).unwrap();
    twin_verify::verify(&out.image, &policy(&Options::new(Mode::Mirror))).unwrap();
    (out.image, out.refused.len())
}

#[test]
fn a_string_of_unknown_length_is_done_in_pieces() {
    // mov rcx,rdx; rep stosb; ret, and a copy with flags and pointers in use behind it: cmp edx,1; mov rcx,rdx;
    // rep movsq; sete al; mov [rdi],rsi; ret
    let fill = [0x48, 0x89, 0xd1, 0xf3, 0xaa, 0xc3];
    let copy = [0x83, 0xfa, 1, 0x48, 0x89, 0xd1, 0xf3, 0x48, 0xa5, 0x0f, 0x94, 0xc0, 0x48, 0x89, 0x37, 0xc3];
    accepted(&[("f", &fill), ("g", &copy)]);
    let compares = |image: &[u8], what: &[u8]| {
        Image::parse(image).unwrap().code().windows(what.len()).filter(|w| *w == what).count()
    };
    let page_of_bytes = [0x48, 0x81, 0xf9, 0x00, 0x10, 0x00, 0x00];
    assert_eq!(compares(&mirrored(&fill).0, &page_of_bytes), 1, "cmp rcx, 4096");
    // mov ecx,4096; rep stosb; ret: no need to look. One more: there is.
    let (short, long) = ([0xb9, 0, 0x10, 0, 0, 0xf3, 0xaa, 0xc3], [0xb9, 1, 0x10, 0, 0, 0xf3, 0xaa, 0xc3]);
    assert_eq!(compares(&mirrored(&short).0, &page_of_bytes), 0);
    assert_eq!(compares(&mirrored(&long).0, &page_of_bytes), 1);
    accepted(&[("f", &short), ("g", &long)]);
}

/// In mirror mode a branch makes no kind, so a label behind it declares none.
#[test]
fn what_a_branch_bounds_is_declared_in_stlb_mode_only() {
    // cmp rdi,4095; ja out; back: dec esi; jnz back; out: mov eax,edi; ret
    let code = [0x48, 0x81, 0xff, 0xff, 0x0f, 0, 0, 0x77, 4, 0xff, 0xce, 0x75, 0xfc, 0x89, 0xf8, 0xc3];
    accepted(&[("f", &code)]);
    let declared = |mode| {
        let out = rewrite(&module(&[("f", &code)]), &Options::new(mode)).unwrap();
        let image = Image::parse(&out.image).unwrap();
        let states: Vec<_> = image.states().iter().map(|s| s.kind(7)).collect();
        states.contains(&Some(Kind::PageOffset))
    };
    assert_eq!((declared(Mode::Mirror), declared(Mode::Stlb)), (false, true));
}

#[test]
fn a_comparison_of_strings_needs_a_known_length() {
    // mov ecx,8; repe cmpsb; sete al; ret: good. mov rcx,-1; repne scasb; ret: not.
    assert_eq!(mirrored(&[0xb9, 8, 0, 0, 0, 0xf3, 0xa6, 0x0f, 0x94, 0xc0, 0xc3]).1, 0);
    assert_eq!(mirrored(&[0x48, 0xc7, 0xc1, 0xff, 0xff, 0xff, 0xff, 0xf2, 0xae, 0xc3]).1, 1);
}

#[test]
fn a_high_byte_is_not_named_together_with_a_new_register() {
    // sub rsp,24; lea rdi,[rsp+8]; mov byte [rsp+8],1; mov ah,[rsp+11]; call printk; add rsp,24; ret. The first store
    // takes r11 for the distance to the unsafe area, which the load can't use.
    let mut code =
        vec![0x48, 0x83, 0xec, 24, 0x48, 0x8d, 0x7c, 0x24, 8, 0xc6, 0x44, 0x24, 8, 1, 0x8a, 0x64, 0x24, 11, 0xe8];
    let call = (OUTSIDE as i64 - (TEXT as i64 + code.len() as i64 + 4)) as i32;
    code.extend(call.to_le_bytes());
    code.extend([0x48, 0x83, 0xc4, 24, 0xc3]);
    accepted(&[("f", &code)]);
}

#[test]
fn a_stack_address_that_is_stored_is_that_of_the_unsafe_area() {
    // sub rsp,16; mov [rdi],rsp; mov qword [rsp],5; mov rax,[rsp]; add rsp,16; ret
    let store = [0x48, 0x83, 0xec, 16, 0x48, 0x89, 0x27, 0x48, 0xc7, 0x04, 0x24, 5, 0, 0, 0, 0x48, 0x8b, 0x04, 0x24];
    let store = [&store[..], &[0x48, 0x83, 0xc4, 16, 0xc3]].concat();
    // sub rsp,16; lea rdi,[rsp+rdi*8]; mov [rdi],rsi; add rsp,16; ret: the index is the destination.
    let array = [0x48, 0x83, 0xec, 16, 0x48, 0x8d, 0x3c, 0xfc, 0x48, 0x89, 0x37, 0x48, 0x83, 0xc4, 16, 0xc3];
    let out = accepted(&[("f", &store), ("g", &array)]);
    assert_eq!(out.counts.unsafe_slots, 4);
}

#[test]
fn a_bit_string_borrows_what_it_needs() {
    // All caller-saved registers live over lock bts [rdi],rsi: push each, and pop them behind it.
    let mut code = vec![0xf0, 0x48, 0x0f, 0xab, 0x37];
    code.extend([0x48, 0x01, 0xc8, 0x48, 0x01, 0xd0, 0x48, 0x01, 0xf0, 0x48, 0x01, 0xf8]);
    code.extend([0x4c, 0x01, 0xc0, 0x4c, 0x01, 0xc8, 0x4c, 0x01, 0xd0, 0x4c, 0x01, 0xd8, 0xc3]);
    accepted(&[("f", &code)]);
}

#[test]
fn a_tail_call_hands_stack_arguments_on() {
    // f: jmp g. g: mov rax,[rsp+8]; ret. h, which provides the word: sub rsp,8; mov [rsp],rdi; call f; add rsp,8; ret
    let f = [&[0xe9][..], &11i32.to_le_bytes()].concat();
    let h = [
        &[0x48, 0x83, 0xec, 8, 0x48, 0x89, 0x3c, 0x24, 0xe8][..],
        &(-45i32).to_le_bytes(),
        &[0x48, 0x83, 0xc4, 8, 0xc3],
    ];
    let out = accepted(&[("f", &f), ("g", &[0x48, 0x8b, 0x44, 0x24, 8, 0xc3]), ("h", &h.concat())]);
    let functions = Image::parse(&out.image).unwrap().functions();
    assert_eq!(functions.iter().map(|f| f.stack_args).collect::<Vec<_>>(), [1, 1, 0]);
}

#[test]
fn what_a_judge_does_not_accept_becomes_an_upcall() {
    // g: call f; ret
    let g = [&[0xe8][..], &(-21i32).to_le_bytes(), &[0xc3]].concat();
    let m = module(&[("f", &[0x90, 0xc3]), ("g", &g)]);
    let options = Options::new(Mode::Mirror);
    let mut asked = 0;
    let out = rewrite_judged(&m, &options, &mut |image| {
        asked += 1;
        let image = Image::parse(image).unwrap();
        image.functions().iter().filter(|f| f.domain == TEXT).map(|f| (f.start, "not this one".into())).collect()
    });
    let out = out.unwrap();
    assert_eq!((asked, out.refused.len(), out.functions), (2, 1, 2));
    assert_eq!((out.refused[0].function.as_str(), out.refused[0].reason.as_str()), ("f", "not this one"));
    assert_eq!(out.imports, [("f".to_owned(), TEXT)]);
    twin_verify::verify(&out.image, &policy(&options)).unwrap();
    let all = rewrite_judged(&m, &options, &mut |_| vec![(u32::MAX, "the header".into())]);
    assert!(all.unwrap_err().contains("the header"), "what concerns no function ends it");
}

/// A base that is an index holds no address: the table's address, far from zero, is its displacement.
#[test]
fn a_table_in_a_displacement_is_part_of_what_is_translated() {
    let table = (DATA as u32).to_le_bytes();
    // f: mov edx,esi; movzx eax,byte [rdx+table]; movzx ecx,byte [rdx+table+4]; add eax,ecx; ret
    let next = (DATA as u32 + 4).to_le_bytes();
    let f = [&[0x89, 0xf2, 0x0f, 0xb6, 0x82][..], &table, &[0x0f, 0xb6, 0x8a], &next, &[0x01, 0xc8, 0xc3]].concat();
    // g: mov eax,edi; movzx eax,word [rax+rax+table]; ret. h, where the index has a translation: mov ecx,[rdi]; mov
    // eax,[rdi+table]; ret
    let g = [&[0x89, 0xf8, 0x0f, 0xb7, 0x84, 0x00][..], &table, &[0xc3]].concat();
    let h = [&[0x8b, 0x0f, 0x8b, 0x87][..], &table, &[0xc3]].concat();
    let functions: [(&str, &[u8]); 3] = [("f", &f), ("g", &g), ("h", &h)];
    let out = accepted(&functions);
    assert_eq!((out.counts.masks_emitted, out.counts.masks_elided), (5, 0));
    for o in all_options() {
        let out = rewrite(&module(&functions), &o).unwrap();
        assert_eq!(far_displacements(&out.image), [], "{o:?}");
    }
}

/// Addresses and displacements of the code's operands, other than those of `lea`, that add 16 MiB or more to a
/// register.
fn far_displacements(image: &[u8]) -> Vec<(u64, i64)> {
    let image = Image::parse(image).unwrap();
    let decoder = Decoder::with_ip(64, image.code(), 0, DecoderOptions::NONE);
    let far = |i: Instruction| {
        let added = i.memory_displacement64() as i64;
        let register = !matches!(i.memory_base(), Register::None | Register::RIP);
        (i.mnemonic() != Mnemonic::Lea && register && added.unsigned_abs() >= 1 << 24).then_some((i.ip(), added))
    };
    decoder.into_iter().filter_map(far).collect()
}

/// They would be calls of the domain's, in two tasks of it.
#[test]
fn marks_of_readers_are_no_calls() {
    const LOCK: u64 = OUTSIDE + 0x1000;
    const UNLOCK: u64 = OUTSIDE + 0x2000;
    let call =
        |op: u8, at: u64, to: u64| [&[op][..], &((to as i64 - (TEXT + at + 5) as i64) as i32).to_le_bytes()].concat();
    // f: call lock; mov eax,[rdi]; call unlock; ret. g, 16 bytes behind: sub rsp,8; call lock; add rsp,8; jmp unlock
    let f = [call(0xe8, 0, LOCK), vec![0x8b, 0x07], call(0xe8, 7, UNLOCK), vec![0xc3]].concat();
    let g =
        [vec![0x48, 0x83, 0xec, 8], call(0xe8, 20, LOCK), vec![0x48, 0x83, 0xc4, 8], call(0xe9, 29, UNLOCK)].concat();
    let mut m = module(&[("f", &f), ("g", &g)]);
    m.externs.add(LOCK, "__rcu_read_lock");
    m.externs.add(UNLOCK, "__rcu_read_unlock");
    for o in all_options() {
        let out = rewrite(&m, &o).unwrap();
        assert_eq!((out.refused.as_slice(), out.imports.as_slice()), (&[][..], &[][..]), "{o:?}");
        twin_verify::verify(&out.image, &policy(&o)).unwrap();
    }
}
