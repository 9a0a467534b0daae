//! Runs the original text and the twin in the interpreter.

use crate::cpu::{Bus, BusFault, CodeSpace, Cpu, Stop};
use crate::embed::{Embedded, Instance as _};
use crate::lab::{Class, Ended, Executor};
use crate::world::{Beside, Place, World, MASK_BITS, PAGE};
use std::cell::RefCell;
use std::rc::Rc;
use twin_abi::image::Mode;
use twin_abi::layout::{CODE_OFFSET, ENTRY_AREA, STACK_GUARD, STACK_SIZE, WINDOW_GUARD};
use twin_abi::Image;
use twin_rewrite::module::Module;
use twin_rewrite::program::{self, import_name};
use twin_runtime::gate::{Answer, Call, Gate, Invocation, Registers, Twin};
use twin_runtime::instance::{Areas, Config};
use twin_runtime::linux::{Routine, Stop as RoutineStop, Support};
use twin_runtime::memory::Fault;
use twin_runtime::{Abort, Reason};

/// Where a call returns to.
const RETURN: u64 = 0x7fff_dead_0000;
/// Stack of the original, in a part of the kernel half that nothing uses.
const ORIGINAL_STACK: u64 = 0xffff_a000_0000_0000;
/// Instructions that one call may take.
pub const BUDGET: u64 = 3_000_000;

/// The original text.
pub struct Original {
    module: Rc<Module>,
    code: CodeSpace,
    cpu: Cpu,
    percpu: u64,
}

struct OriginalBus<'a>(&'a World);

impl Bus for OriginalBus<'_> {
    fn read(&mut self, address: u64, size: usize) -> Result<u64, BusFault> {
        self.0.read_int(address, size).map_err(|f| BusFault { address: f.address, write: false })
    }
    fn write(&mut self, address: u64, size: usize, value: u64) -> Result<(), BusFault> {
        self.0.write_int(address, size, value).map_err(|f| BusFault { address: f.address, write: true })
    }
}

impl Original {
    /// The text of `module`.
    pub fn new(module: Rc<Module>, percpu: u64) -> Self {
        let (base, bytes) = twin_rewrite::rewrite::text_of(&module);
        Self { module, code: CodeSpace::new(base, bytes), cpu: Cpu::default(), percpu }
    }

    /// Addresses of the instructions that were run at least once.
    pub fn visited(&self) -> Vec<u64> {
        self.code.visited()
    }

    /// Gives the world a stack for it.
    pub fn prepare(world: &mut World) {
        let bytes = RefCell::new(vec![0; STACK_SIZE as usize]);
        world.beside.push(Beside { address: ORIGINAL_STACK, bytes, at: None });
    }

    fn ended(&self, class: Class, reason: String) -> Ended {
        Ended { reason, at: self.module.describe(self.cpu.rip), class }
    }

    /// Follows a transfer out of the module.
    fn outside(&mut self, to: u64, world: &mut World, support: &Support) -> Result<(), Ended> {
        let names = self.module.externs.names(to);
        if let Some(register) = program::thunk_register(&names) {
            self.cpu.rip = self.cpu.regs[usize::from(register)];
            return Ok(());
        }
        let back = world.read_int(self.cpu.regs[4], 8).map_err(|f| self.ended(Class::Stack, format!("{f:?}")))?;
        if program::is_return_thunk(&names) || program::has_no_effect(&names) {
            self.cpu.regs[4] += 8;
            self.cpu.rip = back;
            return Ok(());
        }
        let Some(name) = import_name(&self.module, to) else {
            return Err(self.ended(Class::IndirectCall, format!("call of {to:#x}")));
        };
        let r = &self.cpu.regs;
        let args = [r[7], r[6], r[2], r[1], r[8], r[9]];
        let result = routine(&name, &args, world, support).map_err(|(class, reason)| self.ended(class, reason))?;
        self.cpu.regs[4] += 8;
        for n in [1, 2, 6, 7, 8, 9, 10, 11] {
            self.cpu.regs[n] = 0;
        }
        self.cpu.regs[0] = result;
        self.cpu.rip = back;
        Ok(())
    }
}

/// Serves a call of `name`: natively if there is a routine, else as an upcall.
pub fn routine(name: &str, args: &[u64; 6], world: &mut World, support: &Support) -> Result<u64, (Class, String)> {
    if let Some(r) = Routine::by_name(name).filter(|_| !world.forced.iter().any(|f| f == name)) {
        world.keep_call(name, args);
        match r.call(support, world, args) {
            Ok(v) => return Ok(v),
            Err(RoutineStop::Upcall) => {}
            Err(RoutineStop::Abort(reason)) => return Err((class_of(&reason), format!("{name}: {reason:x?}"))),
        }
    }
    Ok(world.upcall(name, args))
}

/// The coarse class of an abort.
pub fn class_of(reason: &Reason) -> Class {
    match reason {
        Reason::Memory(_) => Class::Memory,
        Reason::Exception { vector: 0, .. } => Class::Divide,
        Reason::Exception { .. } => Class::Memory,
        Reason::Bug | Reason::Busy => Class::Trap,
        Reason::Budget | Reason::Lock(_) => Class::Budget,
        Reason::TimeOut => Class::TimeOut,
        Reason::IndirectCall(_) | Reason::Import(_) => Class::IndirectCall,
        Reason::StackPointer(_) | Reason::Structure { .. } => Class::Structure,
        Reason::Stack(_) => Class::Stack,
    }
}

impl Executor for Original {
    fn call(&mut self, world: &mut World, support: &Support, function: u64, args: &[u64; 6]) -> Result<u64, Ended> {
        let count = self.cpu.count;
        self.cpu = Cpu { gs_base: self.percpu, count, ..Cpu::default() };
        for (r, value) in [7, 6, 2, 1, 8, 9].into_iter().zip(args) {
            self.cpu.regs[r] = *value;
        }
        self.cpu.regs[4] = ORIGINAL_STACK + STACK_SIZE - 256;
        let to = self.cpu.regs[4];
        world.write_int(to, 8, RETURN).map_err(|f| self.ended(Class::Stack, format!("{f:?}")))?;
        self.cpu.rip = function;
        let limit = count + BUDGET;
        loop {
            let left = limit.saturating_sub(self.cpu.count);
            let stop = self.cpu.run(&mut self.code, &mut OriginalBus(world), left);
            match stop {
                Stop::Outside(RETURN) => return Ok(self.cpu.regs[0]),
                Stop::Outside(to) => self.outside(to, world, support)?,
                // The kernel reports a warning and goes on behind the two bytes.
                Stop::Trap if self.module.is_warning(self.cpu.rip) => self.cpu.rip += 2,
                other => return Err(self.ended(class_of_stop(other), format!("{other:x?}"))),
            }
        }
    }

    fn instructions(&self) -> u64 {
        self.cpu.count
    }
}

fn class_of_stop(stop: Stop) -> Class {
    match stop {
        Stop::Fault(_) => Class::Memory,
        Stop::Trap => Class::Trap,
        Stop::Divide => Class::Divide,
        Stop::Steps => Class::TimeOut,
        Stop::Outside(_) => Class::IndirectCall,
        Stop::Unknown => Class::Other,
    }
}

/// Where the interpreted instance lies.
const INSTANCE: u64 = 0x7000_0000_0000;
const TWIN_STACK: u64 = 0x7100_0000_0000;
const WINDOWS: u64 = 0x7200_0000_0000;
const GATES: u64 = 0x7300_0000_0000;
const HOLE: u64 = 0x7400_0000_0000;
/// The unsafe area: inside the window, where the domain has nothing.
pub const UNSAFE_AREA: u64 = 0x0010_0000_0000;

const GATE_MISS: u64 = GATES + 0x10_0000;
const GATE_ICALL: u64 = GATES + 0x10_0010;
const GATE_WARN: u64 = GATES + 0x10_0020;

/// Memory of the instance.
struct Instance {
    mode: Mode,
    context: Vec<u8>,
    constants: Vec<u8>,
    imports: Vec<u8>,
    call_table: Vec<u8>,
    stlb: Vec<u8>,
    stack: Vec<u8>,
    /// Domain page behind each mapped pair, by number.
    pairs: Vec<Option<u64>>,
    /// Set when the code reached for something that is neither its own nor unmapped by contract.
    escape: Option<BusFault>,
    /// Accesses to the domain's memory and devices.
    accesses: u64,
}

/// The twin.
pub struct TwinEmulator<'a> {
    /// The loaded image.
    pub twin: Twin<'a>,
    machine: Machine<'a>,
    budget: u64,
    steps: i64,
}

/// What runs an instance.
struct Machine<'a> {
    image: Image<'a>,
    code: CodeSpace,
    cpu: Cpu,
    instance: Instance,
    entered: u64,
}

impl<'a> TwinEmulator<'a> {
    /// Loads an image.
    pub fn new(twin: Twin<'a>, percpu: u64) -> Self {
        let image = *twin.verified().image();
        Self::with_code(twin, percpu, image.code().to_vec())
    }

    /// Loads an image, but runs `code` in place of its own (fault injection behind the verifier).
    pub fn with_code(twin: Twin<'a>, percpu: u64, code: Vec<u8>) -> Self {
        let verified = *twin.verified();
        let slots = verified.image().imports().len() as u64;
        let config = Config {
            base: INSTANCE,
            stack: TWIN_STACK,
            unsafe_area: UNSAFE_AREA,
            percpu,
            canary: 0,
            stlb_miss: GATE_MISS,
            icall: GATE_ICALL,
            warn: GATE_WARN,
            imports: (0..slots).map(|n| GATES + 16 * n).collect(),
            hole: HOLE,
        };
        let areas = Areas::new(&verified, twin.addresses(), &config).expect("every slot has a gate");
        let instance = Instance {
            mode: verified.policy().mode,
            context: areas.context,
            constants: areas.constants,
            imports: areas.imports,
            call_table: areas.call_table,
            stlb: areas.stlb,
            stack: vec![0; STACK_SIZE as usize],
            pairs: Vec::new(),
            escape: None,
            accesses: 0,
        };
        let code = CodeSpace::new(INSTANCE + u64::from(CODE_OFFSET), code);
        let machine = Machine { image: *verified.image(), code, cpu: Cpu::default(), instance, entered: 0 };
        Self { twin, machine, budget: BUDGET, steps: i64::MAX }
    }

    /// Gives the world the unsafe area.
    pub fn prepare(world: &mut World) {
        let bytes = RefCell::new(vec![0; STACK_SIZE as usize]);
        world.beside.push(Beside { address: UNSAFE_AREA, bytes, at: None });
    }

    /// How many steps (loops, calls) an invocation may take, and how many instructions at the most.
    pub fn set_budget(&mut self, steps: i64, instructions: u64) {
        (self.steps, self.budget) = (steps, instructions);
    }

    /// Accesses to the domain's memory, its device and the unsafe area so far.
    pub fn accesses(&self) -> u64 {
        self.machine.instance.accesses
    }
}

impl Machine<'_> {
    fn ended(&self, class: Class, reason: String) -> Ended {
        let at = self.abort(Reason::Bug);
        Ended { reason, at: format!("{}+{:#x}", at.symbol, at.original), class }
    }

    fn abort(&self, reason: Reason) -> Abort {
        Abort::at(&self.image, self.cpu.rip.wrapping_sub(self.code.base()) as u32, reason)
    }

    /// `ud2`: the budget is used up, or a BUG.
    fn trapped(&self) -> Ended {
        let over = (self.instance.word(twin_abi::layout::ctx::BUDGET) as i64) < 0;
        let reason = if over { Reason::Budget } else { Reason::Bug };
        self.ended(class_of(&reason), format!("{reason:?}"))
    }

    fn gate(
        &mut self,
        to: u64,
        twin: &mut Invocation<'_, '_>,
        world: &mut World,
        support: &Support,
    ) -> Result<(), Ended> {
        let gate = match to {
            GATE_MISS => Gate::StlbMiss,
            GATE_ICALL => Gate::IndirectCall,
            GATE_WARN => Gate::Warn,
            GATES..GATE_MISS if to.is_multiple_of(16) => Gate::Import(((to - GATES) / 16) as u32),
            _ => return Err(self.ended(Class::Escape, format!("jump to {to:#x}"))),
        };
        let rsp = self.cpu.regs[4];
        let back = {
            let mut bus = TwinBus { instance: &mut self.instance, world };
            bus.read(rsp, 8).map_err(|f| BusFault { ..f })
        };
        let back = back.map_err(|f| self.ended(Class::Stack, format!("{f:x?}")))?;
        let [rax, rcx, rdx, _, _, _, rsi, rdi, r8, r9, r10, r11, ..] = self.cpu.regs;
        let call = Call {
            gate,
            registers: Registers { rax, rcx, rdx, rsi, rdi, r8, r9, r10, r11 },
            from: back.wrapping_sub(self.code.base()) as u32,
            stack: rsp,
        };
        let import = |n: u32| {
            let image = self.image;
            image.imports().get(n as usize).map(|i| image.name(i.name, i.name_len))
        };
        let name = if let Gate::Import(n) = gate { import(n) } else { None };
        let answer = match name {
            Some(name) if world.forced.iter().any(|f| f == name) => {
                Answer::Return(world.upcall(name, &call.registers.args()))
            }
            _ => {
                if let Some(name) = name.filter(|n| Routine::by_name(n).is_some()) {
                    world.keep_call(name, &call.registers.args());
                }
                twin.gate(&call, &mut Embedded { world, instance: &mut self.instance }, support)
            }
        };
        self.load(&answer.registers(&call.registers));
        match answer {
            Answer::Return(_) | Answer::Resume => {
                self.cpu.regs[4] += 8;
                self.cpu.rip = back;
            }
            Answer::Enter(offset) => self.cpu.rip = self.code.base() + u64::from(offset),
            // The domain answers at once.
            Answer::Wait => return Err(self.ended(Class::Other, "waits".into())),
            Answer::Abort(abort) => return Err(Ended::from_abort(&abort, &self.image, self.entered)),
        }
        Ok(())
    }

    fn load(&mut self, r: &Registers) {
        let all = [
            (0, r.rax),
            (1, r.rcx),
            (2, r.rdx),
            (6, r.rsi),
            (7, r.rdi),
            (8, r.r8),
            (9, r.r9),
            (10, r.r10),
            (11, r.r11),
        ];
        for (n, value) in all {
            self.cpu.regs[n] = value;
        }
    }
}

impl Executor for TwinEmulator<'_> {
    fn call(&mut self, world: &mut World, support: &Support, function: u64, args: &[u64; 6]) -> Result<u64, Ended> {
        let m = &mut self.machine;
        let begun = self.twin.begin(function, args, self.steps, &mut Embedded { world, instance: &mut m.instance });
        let (mut invocation, entry) = begun.map_err(|a| Ended::from_abort(&a, &m.image, function))?;
        m.entered = function;
        let count = m.cpu.count;
        m.cpu = Cpu { count, ..Cpu::default() };
        m.load(&entry.registers);
        let top = (STACK_SIZE - ENTRY_AREA) as usize;
        m.instance.stack[top - 8..top].copy_from_slice(&RETURN.to_le_bytes());
        m.cpu.regs[4] = TWIN_STACK + top as u64 - 8;
        m.cpu.rip = m.code.base() + u64::from(entry.offset);
        let limit = count + self.budget;
        loop {
            let left = limit.saturating_sub(m.cpu.count);
            let stop = m.cpu.run(&mut m.code, &mut TwinBus { instance: &mut m.instance, world }, left);
            if let Some(f) = m.instance.escape.take() {
                return Err(m.ended(Class::Escape, format!("reached for {:#x}, write {}", f.address, f.write)));
            }
            match stop {
                Stop::Outside(RETURN) => return Ok(m.cpu.regs[0]),
                Stop::Outside(to) => m.gate(to, &mut invocation, world, support)?,
                Stop::Fault(f) if in_stack_guard(f.address) => {
                    return Err(m.ended(Class::Stack, format!("{f:x?}")));
                }
                Stop::Trap => return Err(m.trapped()),
                other => return Err(m.ended(class_of_stop(other), format!("{other:x?}"))),
            }
        }
    }

    fn instructions(&self) -> u64 {
        self.machine.cpu.count
    }
}

fn in_stack_guard(address: u64) -> bool {
    (TWIN_STACK - STACK_GUARD..TWIN_STACK).contains(&address)
        || (TWIN_STACK + STACK_SIZE..TWIN_STACK + STACK_SIZE + STACK_GUARD).contains(&address)
        || (UNSAFE_AREA - STACK_GUARD..UNSAFE_AREA).contains(&address)
        || (UNSAFE_AREA + STACK_SIZE..UNSAFE_AREA + STACK_SIZE + STACK_GUARD).contains(&address)
}

/// What the twin's accesses reach.
struct TwinBus<'a> {
    instance: &'a mut Instance,
    world: &'a World,
}

/// Where a twin's access leads.
enum Reach {
    World(Place),
    Context(usize),
    Constant(u64),
    Stack(usize),
    /// Unmapped by contract: a fault.
    Nothing,
    /// Neither: an escape.
    Foreign,
}

impl TwinBus<'_> {
    fn reach(&self, address: u64, size: usize, write: bool) -> Reach {
        use twin_abi::layout as l;
        let end = address.wrapping_add(size as u64);
        let within = |from: u64, len: u64| address >= from && end <= from + len && end > address;
        if let Some(offset) = address.checked_sub(INSTANCE).filter(|o| *o < u64::from(CODE_OFFSET)) {
            let word = |bytes: &Vec<u8>, from: u32| {
                let at = (offset - u64::from(from)) as usize;
                bytes.get(at..at + 8).and_then(|b| b.try_into().ok()).map(u64::from_le_bytes)
            };
            let value = match offset as u32 {
                o if o + 8 <= 4096 => return Reach::Context(o as usize),
                l::CONST_OFFSET..l::IMPORT_OFFSET => word(&self.instance.constants, l::CONST_OFFSET),
                l::IMPORT_OFFSET..l::CALL_TABLE_OFFSET => word(&self.instance.imports, l::IMPORT_OFFSET),
                o @ l::CALL_TABLE_OFFSET.. if o < l::STLB_OFFSET => {
                    word(&self.instance.call_table, l::CALL_TABLE_OFFSET)
                }
                _ => word(&self.instance.stlb, l::STLB_OFFSET),
            };
            return match value {
                Some(v) if !write => Reach::Constant(v),
                _ => Reach::Foreign,
            };
        }
        if within(TWIN_STACK, STACK_SIZE) {
            return Reach::Stack((address - TWIN_STACK) as usize);
        }
        if in_stack_guard(address) {
            return Reach::Nothing;
        }
        // In both modes the unsafe area lies at its own address, so that it can be found from the stack.
        let beside = self.world.beside.iter().position(|b| {
            let len = b.bytes.borrow().len() as u64;
            let offset = address.wrapping_sub(UNSAFE_AREA);
            b.address == UNSAFE_AREA && offset < len && offset + size as u64 <= len
        });
        if let Some(n) = beside {
            return Reach::World(Place::Beside(n, (address - UNSAFE_AREA) as usize));
        }
        match self.instance.mode {
            Mode::Mirror => self.mirror(address, write),
            Mode::Stlb => self.window(address, size, write),
        }
    }

    fn mirror(&self, address: u64, write: bool) -> Reach {
        if address < 1 << MASK_BITS {
            return match self.world.masked.get(address / PAGE) {
                Some((pa, writable)) if writable || !write => Reach::World(self.world.target(pa + address % PAGE)),
                _ => Reach::Nothing,
            };
        }
        let above = address - (1 << MASK_BITS);
        let top = address >= 0u64.wrapping_sub(1 << 31);
        // Not canonical: the processor itself refuses.
        let hole = (0x8000_0000_0000..0xffff_8000_0000_0000).contains(&address);
        if above < WINDOW_GUARD || top || hole {
            Reach::Nothing
        } else {
            Reach::Foreign
        }
    }

    fn window(&self, address: u64, size: usize, write: bool) -> Reach {
        let pages = self.instance.pairs.len() as u64 * 2;
        if let Some(offset) = address.checked_sub(WINDOWS).filter(|o| *o < pages * PAGE) {
            let pair = (offset / (2 * PAGE)) as usize;
            let Some(page) = self.instance.pairs[pair] else { return Reach::Nothing };
            let domain = page.wrapping_add(offset % (2 * PAGE));
            return match self.world.place(domain, size, write) {
                Ok(place) => Reach::World(place),
                Err(_) => Reach::Nothing,
            };
        }
        if (HOLE..HOLE + 2 * PAGE).contains(&address) {
            return Reach::Nothing;
        }
        Reach::Foreign
    }
}

impl Bus for TwinBus<'_> {
    fn read(&mut self, address: u64, size: usize) -> Result<u64, BusFault> {
        if size > 1 && address % PAGE + size as u64 > PAGE && !(TWIN_STACK..TWIN_STACK + STACK_SIZE).contains(&address)
        {
            let mut out = 0;
            for k in 0..size {
                out |= self.read(address.wrapping_add(k as u64), 1)? << (8 * k);
            }
            return Ok(out);
        }
        let fault = BusFault { address, write: false };
        let cut = |v: u64| if size == 8 { v } else { v & ((1 << (8 * size)) - 1) };
        match self.reach(address, size, false) {
            Reach::World(place) => {
                self.instance.accesses += 1;
                Ok(self.world.load(place, size))
            }
            Reach::Context(at) => Ok(cut(int(&self.instance.context, at))),
            Reach::Constant(v) => Ok(cut(v)),
            Reach::Stack(at) => Ok(cut(int_of(&self.instance.stack, at, size))),
            Reach::Nothing => Err(fault),
            Reach::Foreign => {
                self.instance.escape = Some(fault);
                Err(fault)
            }
        }
    }

    fn write(&mut self, address: u64, size: usize, value: u64) -> Result<(), BusFault> {
        if size > 1 && address % PAGE + size as u64 > PAGE && !(TWIN_STACK..TWIN_STACK + STACK_SIZE).contains(&address)
        {
            for k in 0..size {
                self.write(address.wrapping_add(k as u64), 1, value >> (8 * k) & 0xff)?;
            }
            return Ok(());
        }
        let fault = BusFault { address, write: true };
        match self.reach(address, size, true) {
            Reach::World(place) => {
                self.instance.accesses += 1;
                self.world.store(place, size, value);
            }
            Reach::Context(at) => self.instance.context[at..at + size].copy_from_slice(&value.to_le_bytes()[..size]),
            Reach::Stack(at) => self.instance.stack[at..at + size].copy_from_slice(&value.to_le_bytes()[..size]),
            Reach::Nothing => return Err(fault),
            Reach::Constant(_) | Reach::Foreign => {
                self.instance.escape = Some(fault);
                return Err(fault);
            }
        }
        Ok(())
    }
}

fn int(bytes: &[u8], at: usize) -> u64 {
    int_of(bytes, at, 8)
}

fn int_of(bytes: &[u8], at: usize, size: usize) -> u64 {
    let mut b = [0; 8];
    b[..size].copy_from_slice(&bytes[at..at + size]);
    u64::from_le_bytes(b)
}

impl crate::embed::Instance for Instance {
    fn word(&self, offset: u32) -> u64 {
        int(&self.context, offset as usize)
    }
    fn set_word(&mut self, offset: u32, value: u64) {
        self.context[offset as usize..offset as usize + 8].copy_from_slice(&value.to_le_bytes());
    }
    fn stack(&self) -> u64 {
        TWIN_STACK
    }
    fn map_pair(&mut self, world: &World, page: u64) -> Result<u64, Fault> {
        world.place(page, 1, false)?;
        self.pairs.push(Some(page));
        Ok(WINDOWS + (self.pairs.len() as u64 - 1) * 2 * PAGE)
    }
    fn unmap_pair(&mut self, mapped: u64) {
        let n = (mapped.wrapping_sub(WINDOWS) / (2 * PAGE)) as usize;
        if let Some(pair) = self.pairs.get_mut(n) {
            *pair = None;
        }
    }
    fn set_entry(&mut self, index: usize, tag: u64, mapped: u64) {
        let at = index * 16;
        if let Some(entry) = self.stlb.get_mut(at..at + 16) {
            entry[..8].copy_from_slice(&tag.to_le_bytes());
            entry[8..].copy_from_slice(&mapped.to_le_bytes());
        }
    }
}
