//! The symbols of a kernel and of its modules: some 150,000, so what each costs beside its letters is little.

use std::collections::HashMap;

/// A symbol of the kernel or of a module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Symbol<'a> {
    /// Address.
    pub address: u64,
    /// Kind letter as in `nm`.
    pub kind: u8,
    /// Name.
    pub name: &'a str,
    /// Module, or nothing for the kernel image.
    pub module: Option<&'a str>,
}

/// Symbols, ordered by address, then by name.
#[derive(Debug, Clone, Default)]
pub struct Symbols {
    /// All names, one behind the other.
    names: String,
    modules: Vec<String>,
    list: Vec<Entry>,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    address: u64,
    /// Where the name is in [`Symbols::names`].
    name: u32,
    bytes: u16,
    /// From 1; 0 is the kernel image.
    module: u16,
    kind: u8,
}

impl Symbols {
    /// From lines as in `/proc/kallsyms`: address, kind, name, and for a module's `[module]`. Others are passed over.
    pub fn read<S: AsRef<str>>(lines: impl IntoIterator<Item = S>) -> Self {
        let mut out = Self::default();
        let mut numbers = HashMap::new();
        for line in lines {
            let _ = out.add(line.as_ref(), &mut numbers);
        }
        let Self { names, list, .. } = &mut out;
        let spelled = |e: &Entry| &names[e.name as usize..e.name as usize + usize::from(e.bytes)];
        list.sort_by(|a, b| a.address.cmp(&b.address).then_with(|| spelled(a).cmp(spelled(b))));
        list.shrink_to_fit();
        names.shrink_to_fit();
        out
    }

    fn add(&mut self, line: &str, numbers: &mut HashMap<String, u16>) -> Option<()> {
        let mut words = line.split_whitespace();
        let address = u64::from_str_radix(words.next()?, 16).ok()?;
        let kind = *words.next()?.as_bytes().first()?;
        let name = words.next()?;
        let module = match words.next().map(|module| module.trim_matches(['[', ']'])) {
            None => 0,
            Some(module) => match numbers.get(module) {
                Some(number) => *number,
                None => {
                    self.modules.push(module.into());
                    let number = u16::try_from(self.modules.len()).ok()?;
                    numbers.insert(module.into(), number);
                    number
                }
            },
        };
        let (at, bytes) = (u32::try_from(self.names.len()).ok()?, u16::try_from(name.len()).ok()?);
        self.names.push_str(name);
        self.list.push(Entry { address, name: at, bytes, module, kind });
        Some(())
    }

    fn symbol(&self, entry: &Entry) -> Symbol<'_> {
        let name = &self.names[entry.name as usize..entry.name as usize + usize::from(entry.bytes)];
        let module = usize::from(entry.module).checked_sub(1).map(|number| self.modules[number].as_str());
        Symbol { address: entry.address, kind: entry.kind, name, module }
    }

    /// All.
    pub fn iter(&self) -> impl Iterator<Item = Symbol<'_>> {
        self.list.iter().map(|entry| self.symbol(entry))
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.list.len()
    }

    /// The last one at or below `address`.
    pub fn below(&self, address: u64) -> Option<Symbol<'_>> {
        let after = self.list.partition_point(|entry| entry.address <= address);
        Some(self.symbol(self.list.get(after.checked_sub(1)?)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str =
        "ffffffff81000100 T second\nffffffffc0000000 t own\t[e1000]\n0000000000000000 A first\nno symbol\n\
                        ffffffffc0000000 t alias\t[e1000]\nffffffffc0001000 t other\t[e1000e]\n";

    #[test]
    fn they_are_ordered_and_know_their_module() {
        let symbols = Symbols::read(TEXT.lines());
        let names: Vec<_> = symbols.iter().map(|s| (s.name, s.module)).collect();
        assert_eq!(
            names,
            [
                ("first", None),
                ("second", None),
                ("alias", Some("e1000")),
                ("own", Some("e1000")),
                ("other", Some("e1000e"))
            ]
        );
        let below = |address| symbols.below(address).map(|s| (s.name, s.kind));
        assert_eq!(below(0xffff_ffff_8100_0fff), Some(("second", b'T')));
        assert_eq!(below(0xffff_ffff_c000_0000), Some(("own", b't')));
        assert_eq!((below(5), symbols.count()), (Some(("first", b'A')), 5));
    }

    /// A driver domain is small, and has nothing to swap to.
    #[test]
    fn each_costs_its_letters_and_little_more() {
        let lines = (0..150_000).map(|n| format!("{:016x} t {n:020}\t[module{}]", n * 16, n % 100));
        let symbols = Symbols::read(lines);
        let bytes = symbols.names.capacity() + symbols.list.capacity() * size_of::<Entry>();
        assert_eq!((symbols.count(), symbols.modules.len()), (150_000, 100));
        assert!(bytes <= 150_000 * (20 + 24), "{bytes} bytes");
    }
}
