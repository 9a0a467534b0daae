//! The rewriter's input: a module's final text and data with symbols, wherever they come from.

use std::ops::Range;

/// A part of the module in memory.
#[derive(Debug, Clone)]
pub struct Section {
    /// Name as in the object file.
    pub name: String,
    /// Address in the driver domain.
    pub address: u64,
    /// Content, relocated and patched.
    pub bytes: Vec<u8>,
    /// Holds instructions.
    pub executable: bool,
    /// May be written by the driver.
    pub writable: bool,
}

impl Section {
    /// First address behind the section.
    pub fn end(&self) -> u64 {
        self.address + self.bytes.len() as u64
    }

    /// Whether `address` lies inside.
    pub fn contains(&self, address: u64) -> bool {
        (self.address..self.end()).contains(&address)
    }
}

/// A function symbol. `len` is an upper bound if the symbol table has no sizes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Function {
    /// First address.
    pub address: u64,
    /// Bytes up to the next symbol or the symbol's own size.
    pub len: u64,
    /// Name.
    pub name: String,
}

/// Symbols outside of the module.
#[derive(Debug, Clone, Default)]
pub struct Externs {
    /// All names, one behind the other.
    text: String,
    /// Address, beginning and end of each name, in this order. A kernel has some 150,000: what each costs beside its
    /// letters is said here.
    names: Vec<(u64, u32, u32)>,
}

impl Externs {
    /// Adds a symbol.
    pub fn add(&mut self, address: u64, name: &str) {
        let range = self.range(address);
        let place = |at: usize| u32::try_from(at).ok();
        let (Some(from), Some(to)) = (place(self.text.len()), place(self.text.len() + name.len())) else { return };
        if !self.names[range.clone()].iter().any(|own| self.spelled(own) == name) {
            self.text.push_str(name);
            self.names.insert(range.end, (address, from, to));
        }
    }

    /// All names of exactly this address.
    pub fn names(&self, address: u64) -> Vec<&str> {
        self.names[self.range(address)].iter().map(|name| self.spelled(name)).collect()
    }

    /// The symbol at or below `address`, with the distance.
    pub fn below(&self, address: u64) -> Option<(&str, u64)> {
        let after = self.names.partition_point(|(at, _, _)| *at <= address);
        let (at, _, _) = *self.names.get(after.checked_sub(1)?)?;
        Some((*self.names(at).first()?, address - at))
    }

    /// Address of a symbol; linear, for set-up only.
    pub fn find(&self, name: &str) -> Option<u64> {
        self.names.iter().find(|own| self.spelled(own) == name).map(|(address, _, _)| *address)
    }

    /// The names of exactly this address, by their numbers.
    fn range(&self, address: u64) -> Range<usize> {
        // Mostly they come in order.
        if self.names.last().is_none_or(|(last, _, _)| *last < address) {
            return self.names.len()..self.names.len();
        }
        let from = self.names.partition_point(|(at, _, _)| *at < address);
        let count = self.names[from..].iter().take_while(|(at, _, _)| *at == address).count();
        from..from + count
    }

    fn spelled(&self, (_, from, to): &(u64, u32, u32)) -> &str {
        &self.text[*from as usize..*to as usize]
    }
}

/// A module as it lies in the driver domain's memory, or several of which one twin is made.
#[derive(Debug, Clone, Default)]
pub struct Module {
    /// Name; of several, their names with plus signs between.
    pub name: String,
    /// Sections, ordered by address, without those of initialisation.
    pub sections: Vec<Section>,
    /// Function symbols, ordered by address.
    pub functions: Vec<Function>,
    /// Symbols outside.
    pub externs: Externs,
}

impl Module {
    /// The section that contains `address`.
    pub fn section(&self, address: u64) -> Option<&Section> {
        self.sections.iter().find(|s| s.contains(address))
    }

    /// Whether `address` is in the module's text.
    pub fn is_text(&self, address: u64) -> bool {
        self.section(address).is_some_and(|s| s.executable)
    }

    /// Several modules as one: what one calls of another is a call inside. `externs` are the symbols outside of all.
    pub fn join(modules: Vec<Self>, externs: Externs) -> Self {
        let name = modules.iter().map(|m| m.name.as_str()).collect::<Vec<_>>().join("+");
        let mut out = Self { name, externs, ..Self::default() };
        for m in modules {
            out.sections.extend(m.sections);
            out.functions.extend(m.functions);
        }
        out.sections.sort_by_key(|s| s.address);
        out.functions.sort();
        out
    }

    /// The sections of this name: each module has its own.
    pub fn named<'m>(&'m self, name: &'m str) -> impl Iterator<Item = &'m Section> {
        self.sections.iter().filter(move |s| s.name == name)
    }

    /// Whether the deliberate fault at `address` is a warning, after which the code goes on: by the module's table of
    /// them. A record: distance to the address, distance to the file name, line, flags (bit 0: warning).
    pub fn is_warning(&self, address: u64) -> bool {
        const RECORD: usize = 12;
        self.named("__bug_table").any(|table| {
            table.bytes.chunks_exact(RECORD).zip(0u64..).any(|(r, n)| {
                let distance = i32::from_le_bytes([r[0], r[1], r[2], r[3]]);
                let place = table.address + n * RECORD as u64;
                place.wrapping_add_signed(i64::from(distance)) == address && r[10] & 1 != 0
            })
        })
    }

    /// The function at or before `address` in the text, with the distance: the way faults are named.
    pub fn describe(&self, address: u64) -> String {
        let at = self.functions.partition_point(|f| f.address <= address);
        match at.checked_sub(1).map(|i| &self.functions[i]) {
            Some(f) if self.is_text(address) => format!("{}+{:#x}", f.name, address - f.address),
            _ => match self.externs.below(address) {
                Some((name, off)) if off < 1 << 20 => format!("{name}+{off:#x}"),
                _ => format!("{address:#x}"),
            },
        }
    }

    /// Checks what every later step relies on: ordered, disjoint sections and functions inside executable sections.
    pub fn check(&self) -> Result<(), String> {
        if !self.sections.iter().any(|s| s.executable && !s.bytes.is_empty()) {
            return Err("the module has no text".into());
        }
        if self.sections.windows(2).any(|w| w[0].end() > w[1].address) {
            return Err("the module's sections overlap".into());
        }
        if self.functions.is_empty() {
            return Err(
                "the module has no function symbols (stripped?); function boundaries cannot be recovered".into()
            );
        }
        for f in &self.functions {
            let inside = self.section(f.address).is_some_and(|s| s.executable && f.address + f.len <= s.end());
            if !inside {
                return Err(format!("function {} at {:#x} is outside of the text", f.name, f.address));
            }
        }
        Ok(())
    }
}

/// Bounds each function by the next symbol of its section where the size is not known (zero) or too long.
pub fn bound_functions(functions: &mut Vec<Function>, sections: &[Section]) {
    functions.sort();
    functions.dedup_by(|a, b| a.address == b.address);
    let starts: Vec<u64> = functions.iter().map(|f| f.address).collect();
    for (i, f) in functions.iter_mut().enumerate() {
        let end = sections.iter().find(|s| s.contains(f.address)).map_or(f.address, Section::end);
        let next = starts.get(i + 1).copied().unwrap_or(end).min(end);
        if f.len == 0 || f.address + f.len > next {
            f.len = next - f.address;
        }
    }
}
