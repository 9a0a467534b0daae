//! Reads BTF, the compact type information a kernel carries: member offsets and sizes of structures by name.

use crate::Result;

const MAGIC: u16 = 0xeb9f;
const KIND_INT: u32 = 1;
const KIND_ARRAY: u32 = 3;
const KIND_STRUCT: u32 = 4;
const KIND_UNION: u32 = 5;
const KIND_ENUM: u32 = 6;
const KIND_FUNC_PROTO: u32 = 13;
const KIND_VAR: u32 = 14;
const KIND_DATASEC: u32 = 15;
const KIND_DECL_TAG: u32 = 17;
const KIND_ENUM64: u32 = 19;

#[derive(Debug, Clone, Copy)]
struct Type {
    kind: u32,
    /// Of a structure, in bytes.
    size: u32,
    /// Where its members are in [`Btf::members`], and how many.
    members: (u32, u32),
}

/// Parsed type information. Of a kernel's there is much, so it lies in few pieces, and only what is asked for is kept.
#[derive(Debug, Clone, Default)]
pub struct Btf {
    types: Vec<Type>,
    /// Name, type and bit offset of each member of a structure.
    members: Vec<(u32, u32, u32)>,
    strings: Vec<u8>,
    /// Name and number of each structure that has a name, ordered by name.
    structures: Vec<(u32, u32)>,
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
            out.types.push(Type { kind: 0, size: 0, members: (0, 0) });
        }
        out.strings.extend_from_slice(part(str_off, str_len).ok_or("type information: strings outside of the file")?);
        let mut r = Reader(part(type_off, type_len).ok_or("type information: types outside of the file")?, 0);
        while r.1 < r.0.len() {
            let (name, info, size) = (r.u32()?, r.u32()?, r.u32()?);
            let (kind, count) = (info >> 24 & 31, info & 0xffff);
            let narrow = |count: usize| u32::try_from(count).map_err(|e| e.to_string());
            let (id, first) = (narrow(out.types.len())?, narrow(out.members.len())?);
            let mut members = (0, 0);
            match kind {
                KIND_INT | KIND_VAR | KIND_DECL_TAG => r.1 += 4,
                KIND_ARRAY => r.1 += 12,
                KIND_STRUCT | KIND_UNION => {
                    for _ in 0..count {
                        let (n, t, off) = (r.u32()?, r.u32()?, r.u32()?);
                        out.members.push((n, t, if info >> 31 != 0 { off & 0xff_ffff } else { off }));
                    }
                    members = (first, count);
                    if !out.string(name).is_empty() {
                        out.structures.push((name, id));
                    }
                }
                KIND_ENUM | KIND_FUNC_PROTO => r.1 += 8 * count as usize,
                KIND_DATASEC | KIND_ENUM64 => r.1 += 12 * count as usize,
                _ => {}
            }
            out.types.push(Type { kind, size, members });
        }
        // Of the same name the first counts.
        let mut structures = std::mem::take(&mut out.structures);
        structures.sort_by(|a, b| out.string(a.0).cmp(out.string(b.0)).then(a.1.cmp(&b.1)));
        out.structures = structures;
        Ok(out)
    }

    fn string(&self, at: u32) -> &[u8] {
        let rest = self.strings.get(at as usize..).unwrap_or(&[]);
        let end = rest.iter().position(|&b| b == 0).unwrap_or(rest.len());
        &rest[..end]
    }

    fn structure(&self, name: &str) -> Result<&Type> {
        let at = self.structures.partition_point(|(own, _)| self.string(*own) < name.as_bytes());
        let found = self.structures.get(at).filter(|(own, _)| self.string(*own) == name.as_bytes());
        found
            .and_then(|(_, id)| self.types.get(*id as usize))
            .ok_or_else(|| format!("no type information for struct {name}"))
    }

    /// Size of a structure in bytes.
    pub fn size(&self, structure: &str) -> Result<u64> {
        Ok(u64::from(self.structure(structure)?.size))
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
        let (first, count) = t.members;
        for (name, id, bits) in self.members.get(first as usize..)?.get(..count as usize)? {
            let spelled = self.string(*name);
            if spelled == member.as_bytes() {
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
        for w in [24, 0, body.len(), body.len(), strings.len()] {
            all.extend(u32::try_from(w).unwrap().to_le_bytes());
        }
        all.extend(body);
        all.extend(strings);
        let t = Btf::parse(&all, None).unwrap();
        assert_eq!(t.offset("pair", "second"), Ok(4));
        assert_eq!(t.size("pair"), Ok(8));
        assert!(t.offset("pair", "third").is_err());
    }
}
