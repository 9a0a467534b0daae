use super::*;

/// A page of memory at 0x1000, and two symbols of the same name.
struct Small([u8; 4096], Symbols);

impl LiveKernel for Small {
    fn read(&self, address: u64, out: &mut [u8]) -> Option<()> {
        let at = usize::try_from(address.checked_sub(0x1000)?).ok()?;
        out.copy_from_slice(self.0.get(at..at.checked_add(out.len())?)?);
        Some(())
    }
    fn is_writable(&self, _: u64) -> bool {
        false
    }
    fn symbols(&self) -> &Symbols {
        &self.1
    }
    fn module(&self, _: &str) -> Option<&ModuleInfo> {
        None
    }
}

fn small() -> Small {
    let mut memory = [0xff; 4096];
    memory[..5].copy_from_slice(b"eth0\0");
    Small(memory, Symbols::read(["1000 t probe [e1000]", "2000 t probe"]))
}

#[test]
fn symbols_of_the_image_and_of_modules_are_told_apart() {
    let kernel = small();
    assert_eq!((kernel.symbol("probe"), kernel.symbol("e1000:probe")), (Some(0x2000), Some(0x1000)));
    assert_eq!((kernel.symbol("e1000e:probe"), kernel.symbol("other")), (None, None));
}

#[test]
fn integers_and_names_end_with_the_memory() {
    let kernel = small();
    assert_eq!(kernel.read_int(0x1000, 4), Some(u64::from(u32::from_le_bytes(*b"eth0"))));
    assert_eq!((kernel.read_int(0x1fff, 2), kernel.read_int(0x1000, 9)), (None, None));
    assert_eq!(kernel.read_name(0x1000).as_deref(), Some("eth0"));
    assert_eq!((kernel.read_name(0x1010), kernel.read_name(0x1ff0)), (None, None), "no end; beyond the page");
}

#[test]
fn a_kernel_without_type_information_says_so() {
    let none = net::types(&small()).map(|_| ()).expect_err("there is none");
    assert!(none.contains("no type information") && none.contains("CONFIG_DEBUG_INFO_BTF"), "{none}");
}

#[test]
fn of_several_cards_on_a_line_each_has_its_own_handler() {
    let own = 0x8000..0x9000;
    let choose = |actions: &[(u64, u64)]| net::own_action(actions, 11, &own);
    assert_eq!(choose(&[]), Ok(None));
    assert_eq!(choose(&[(1, 0xf000)]), Ok(Some((1, 0xf000))), "where its argument is, is the driver's");
    for argument in [0x8000, 0x89c0, 0x8fff] {
        assert_eq!(choose(&[(1, 0x4000), (1, argument), (1, 0x9000)]), Ok(Some((1, argument))));
    }
    for none_or_several in [[(1, 0x4000), (1, 0x9000)], [(1, 0x8000), (2, 0x8000)]] {
        let refused = choose(&none_or_several).expect_err("refused");
        assert!(refused.contains("2 handlers on interrupt 11"), "{refused}");
    }
}

#[test]
fn a_module_that_is_not_loaded_has_no_text() {
    assert_eq!(driver::module(&small(), "e1000").map(|_| ()), Err("no module e1000 is loaded".into()));
}

#[test]
fn a_module_whose_text_has_changed_since_it_was_read_is_told_from_one_whose_data_have() {
    use twin_rewrite::module::{Module, Section};
    let mut kernel = small();
    let section = |name: &str, address, writable: bool| Section {
        name: name.into(),
        address,
        bytes: vec![0xff; 16],
        executable: !writable,
        writable,
    };
    let sections = vec![section(".text", 0x1100, false), section(".data", 0x1200, true)];
    let module = Module { name: "e1000".into(), sections, ..Module::default() };
    kernel.0[0x208] = 1;
    assert_eq!(driver::check_same(&kernel, &module), Ok(()));
    kernel.0[0x108] = 1;
    assert_eq!(driver::check_same(&kernel, &module), Err(".text of e1000 has changed".into()));
    let gone = Module { sections: vec![section(".text", 0x3000, false)], ..module };
    assert!(driver::check_same(&kernel, &gone).is_err());
}

#[test]
fn a_driver_without_its_lock_prefixes_is_refused() {
    use twin_rewrite::module::{Module, Section};
    let section = |name: &str, address, bytes: &[u8]| Section {
        name: name.into(),
        address,
        bytes: bytes.to_vec(),
        executable: name == ".text",
        writable: false,
    };
    let with = |prefix: u8| Module {
        sections: vec![
            section(".text", 0x1000, &[0x90, prefix, 0x0f, 0xb1, 0x17, 0xc3]),
            section(".smp_locks", 0x2000, &[0x01, 0xf0, 0xff, 0xff, 0, 0, 0, 0]),
        ],
        ..Module::default()
    };
    assert_eq!(driver::check_locks(&with(0xf0)), Ok(()));
    let refused = driver::check_locks(&with(0x3e)).expect_err("refused");
    assert!(refused.contains("0x1001") && refused.contains("maxvcpus"), "{refused}");
}
