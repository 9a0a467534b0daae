//! Reads BTF, the compact type information a kernel carries: member offsets and sizes of structures by name.

use crate::Result;
use std::collections::HashMap;

const MAGIC: u16 = 0xeb9f;
const KIND_PTR: u32 = 2;
const KIND_INT: u32 = 1;
const KIND_ARRAY: u32 = 3;
const KIND_STRUCT: u32 = 4;
const KIND_UNION: u32 = 5;
const KIND_ENUM: u32 = 6;
const KIND_FUNC: u32 = 12;
const KIND_FUNC_PROTO: u32 = 13;
const KIND_VAR: u32 = 14;
const KIND_DATASEC: u32 = 15;
const KIND_DECL_TAG: u32 = 17;
const KIND_ENUM64: u32 = 19;

#[derive(Debug, Clone)]
struct Type {
    kind: u32,
    size_or_type: u32,
    /// Members (name, type, bit offset) of structures; parameters of prototypes; element type and count of arrays.
    parts: Vec<(u32, u32, u32)>,
}

/// Parsed type information.
#[derive(Debug, Clone, Default)]
pub struct Btf {
    types: Vec<Type>,
    strings: Vec<u8>,
    by_name: HashMap<String, usize>,
    functions: HashMap<String, usize>,
}

struct Reader<'a>(&'a [u8], usize);

impl Reader<'_> {
    fn u32(&mut self) -> Result<u32> {
        let bytes = self.0.get(self.1..self.1 + 4).ok_or("type information ends early")?;
        self.1 += 4;
        Ok(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }
}

impl Btf {
    /// Parses `bytes`; a module's information continues that of the kernel, `base`.
    pub fn parse(bytes: &[u8], base: Option<&Btf>) -> Result<Self> {
        if bytes.len() < 24 || u16::from_le_bytes([bytes[0], bytes[1]]) != MAGIC {
            return Err("not type information".into());
        }
        let mut header = Reader(bytes, 4);
        let (hdr, type_off, type_len) = (header.u32()?, header.u32()?, header.u32()?);
        let (str_off, str_len) = (header.u32()?, header.u32()?);
        let part = |off: u32, len: u32| {
            let start = (hdr as usize).checked_add(off as usize)?;
            bytes.get(start..start.checked_add(len as usize)?)
        };
        let mut out = base.cloned().unwrap_or_default();
        if out.types.is_empty() {
            out.types.push(Type { kind: 0, size_or_type: 0, parts: Vec::new() });
        }
        out.strings.extend_from_slice(part(str_off, str_len).ok_or("type information: strings outside of the file")?);
        let mut r = Reader(part(type_off, type_len).ok_or("type information: types outside of the file")?, 0);
        while r.1 < r.0.len() {
            let (name, info, size_or_type) = (r.u32()?, r.u32()?, r.u32()?);
            let (kind, count) = (info >> 24 & 31, info & 0xffff);
            let mut parts = Vec::new();
            match kind {
                KIND_INT | KIND_VAR | KIND_DECL_TAG => drop(r.u32()?),
                KIND_ARRAY => {
                    let (element, _, n) = (r.u32()?, r.u32()?, r.u32()?);
                    parts.push((0, element, n));
                }
                KIND_STRUCT | KIND_UNION => {
                    for _ in 0..count {
                        let (n, t, off) = (r.u32()?, r.u32()?, r.u32()?);
                        parts.push((n, t, if info >> 31 != 0 { off & 0xff_ffff } else { off }));
                    }
                }
                KIND_ENUM | KIND_FUNC_PROTO => {
                    for _ in 0..count {
                        parts.push((r.u32()?, r.u32()?, 0));
                    }
                }
                KIND_DATASEC | KIND_ENUM64 => r.1 += 12 * count as usize,
                _ => {}
            }
            let id = out.types.len();
            out.types.push(Type { kind, size_or_type, parts });
            let spelled = out.string(name);
            if !spelled.is_empty() {
                if kind == KIND_STRUCT || kind == KIND_UNION {
                    out.by_name.entry(spelled).or_insert(id);
                } else if kind == KIND_FUNC {
                    out.functions.entry(spelled).or_insert(size_or_type as usize);
                }
            }
        }
        Ok(out)
    }

    fn string(&self, at: u32) -> String {
        let rest = self.strings.get(at as usize..).unwrap_or(&[]);
        let end = rest.iter().position(|&b| b == 0).unwrap_or(rest.len());
        String::from_utf8_lossy(&rest[..end]).into_owned()
    }

    fn structure(&self, name: &str) -> Result<&Type> {
        self.by_name
            .get(name)
            .and_then(|&id| self.types.get(id))
            .ok_or(format!("no type information for struct {name}"))
    }

    /// Size of a structure in bytes.
    pub fn size(&self, structure: &str) -> Result<u64> {
        Ok(u64::from(self.structure(structure)?.size_or_type))
    }

    /// Byte offset of a member; anonymous structures and unions inside are searched.
    pub fn offset(&self, structure: &str, member: &str) -> Result<u64> {
        self.bit_offset(structure, member).map(|bits| bits / 8)
    }

    /// Bit offset of a member, for bit fields.
    pub fn bit_offset(&self, structure: &str, member: &str) -> Result<u64> {
        let t = self.structure(structure)?;
        self.find(t, member, 0).ok_or(format!("struct {structure} has no member {member}"))
    }

    fn find(&self, t: &Type, member: &str, depth: u32) -> Option<u64> {
        for (name, id, bits) in &t.parts {
            let spelled = self.string(*name);
            if spelled == member {
                return Some(u64::from(*bits));
            }
            if spelled.is_empty() && depth < 8 {
                let inner = self.types.get(*id as usize)?;
                if inner.kind == KIND_STRUCT || inner.kind == KIND_UNION {
                    if let Some(more) = self.find(inner, member, depth + 1) {
                        return Some(u64::from(*bits) + more);
                    }
                }
            }
        }
        None
    }

    /// Number of parameters of a function; `None` if unknown or variadic.
    pub fn parameters(&self, function: &str) -> Option<usize> {
        let proto = self.types.get(*self.functions.get(function)?)?;
        let variadic = proto.parts.last().is_some_and(|(n, t, _)| *n == 0 && *t == 0);
        (proto.kind == KIND_FUNC_PROTO && !variadic).then_some(proto.parts.len())
    }

    /// Whether a structure member is a pointer (used to skip a level when following chains).
    pub fn is_pointer(&self, structure: &str, member: &str) -> bool {
        let Ok(t) = self.structure(structure) else { return false };
        t.parts.iter().any(|(n, id, _)| {
            self.string(*n) == member && self.types.get(*id as usize).is_some_and(|x| x.kind == KIND_PTR)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Btf;

    #[test]
    fn refuses_what_is_not_type_information() {
        assert!(Btf::parse(&[0; 64], None).is_err());
        assert!(Btf::parse(&[0x9f, 0xeb, 1, 0], None).is_err());
    }

    #[test]
    fn finds_a_member_inside_an_anonymous_union() {
        let strings = b"\0pair\0first\0second\0";
        let mut types: Vec<u32> = vec![];
        types.extend([0, 1 << 24, 4, 32]); // 1: int
        types.extend([0, 5 << 24 | 1, 4, 12, 1, 0]); // 2: anonymous union { int second }
        types.extend([1, 4 << 24 | 2, 8, 6, 1, 0, 0, 2, 32]); // 3: struct pair { int first; union }
        let body: Vec<u8> = types.iter().flat_map(|w| w.to_le_bytes()).collect();
        let mut all = vec![0x9f, 0xeb, 1, 0];
        for w in [24, 0, body.len() as u32, body.len() as u32, strings.len() as u32] {
            all.extend(w.to_le_bytes());
        }
        all.extend(body);
        all.extend(strings);
        let t = Btf::parse(&all, None).unwrap();
        assert_eq!(t.offset("pair", "second"), Ok(4));
        assert_eq!(t.size("pair"), Ok(8));
        assert!(t.offset("pair", "third").is_err());
    }
}
