//! One Rust file as the check of the floors sees it: the paths that it names, and where.
//!
//! This is a scanner, not a parser: comments and literals are taken out, and paths are read wherever they stand, in
//! `use` declarations, bodies and macros alike. What it cannot see are methods, so a type's methods have to stay in its
//! file.

use std::collections::BTreeMap;

/// A name with where it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path {
    pub line: usize,
    pub segments: Vec<String>,
}

/// What one file names.
#[derive(Debug, Default)]
pub struct Source {
    /// Full paths (`crate`, `self` and `super` resolved, without `crate`), and paths that begin with a name of the
    /// file's.
    pub paths: Vec<Path>,
    /// Names brought in by `use`, and what they stand for.
    pub imports: BTreeMap<String, Vec<String>>,
    /// Names that others may use as if they were this module's, what they stand for, and whether the file uses them
    /// itself.
    pub exports: BTreeMap<String, (Path, bool)>,
    /// Macros of the whole crate that are defined here.
    pub macros: Vec<String>,
    /// Types to which methods, or a destructor, are given here, and where.
    pub methods_of: Vec<(usize, String)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    Name(String),
    /// `::`
    Of,
    Mark(char),
}

/// Takes comments and literals out and cuts the rest into tokens with their lines.
fn tokens(text: &str) -> Vec<(usize, Token)> {
    let bytes = text.as_bytes();
    let mut found = Vec::new();
    let (mut at, mut line) = (0, 1);
    while at < bytes.len() {
        let rest = &text[at..];
        let skipped = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else {
            literal(rest)
        };
        if skipped > 0 {
            line += rest[..skipped].matches('\n').count();
            at += skipped;
            continue;
        }
        let c = rest.chars().next().expect("not at the end");
        if c.is_alphabetic() || c == '_' {
            let len = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
            found.push((line, Token::Name(rest[..len].to_owned())));
            at += len;
        } else if rest.starts_with("::") {
            found.push((line, Token::Of));
            at += 2;
        } else {
            line += usize::from(c == '\n');
            if !c.is_whitespace() {
                found.push((line, Token::Mark(c)));
            }
            at += c.len_utf8();
        }
    }
    found
}

/// Length of the string, character or lifetime that `text` begins with; 0: none.
fn literal(text: &str) -> usize {
    let prefix = text.find(|c| !matches!(c, 'b' | 'c' | 'r')).unwrap_or(0).min(2);
    let hashes = text[prefix..].find(|c| c != '#').unwrap_or(0);
    let is_raw = text[..prefix].contains('r');
    let open = prefix + if is_raw { hashes } else { 0 };
    if text[open..].starts_with('"') {
        let mut end = open + 1;
        if is_raw {
            let close = format!("\"{}", "#".repeat(hashes));
            return text[end..].find(&close).map_or(text.len(), |n| end + n + close.len());
        }
        while end < text.len() && !text[end..].starts_with('"') {
            end += if text[end..].starts_with('\\') { 2 } else { text[end..].chars().next().map_or(1, char::len_utf8) };
        }
        return end + 1;
    }
    let mut chars = text.strip_prefix("b'").or_else(|| text.strip_prefix('\'')).unwrap_or_default().chars();
    let quote = text.find('\'').filter(|&q| q < 2).unwrap_or(0);
    match (chars.next(), chars.next()) {
        (Some('\\'), _) => text[quote + 3..].find('\'').map_or(text.len(), |n| quote + 3 + n + 1),
        (Some(c), Some('\'')) => quote + 1 + c.len_utf8() + 1,
        // A lifetime.
        (Some(c), _) if c.is_alphabetic() || c == '_' => 1,
        _ => 0,
    }
}

impl Source {
    /// Reads the file of module `module` (its path below the crate, root: empty).
    pub fn new(module: &[String], text: &str) -> Self {
        let mut reader = Reader { tokens: tokens(text), at: 0, module: module.to_vec(), inner: Vec::new(), depth: 0 };
        let mut source = Self::default();
        reader.read(&mut source);
        let used = |name: &str, tokens: &[(usize, Token)]| {
            tokens.iter().filter(|(_, t)| *t == Token::Name(name.to_owned())).count() > 1
        };
        for (name, (_, is_used)) in &mut source.exports {
            *is_used = used(name, &reader.tokens);
        }
        source
    }
}

struct Reader {
    tokens: Vec<(usize, Token)>,
    at: usize,
    module: Vec<String>,
    /// Modules inside the file that are open, with the depth of braces at which each ends.
    inner: Vec<(String, usize)>,
    depth: usize,
}

impl Reader {
    fn name(&self, offset: usize) -> Option<&str> {
        match self.tokens.get(self.at + offset) {
            Some((_, Token::Name(name))) => Some(name),
            _ => None,
        }
    }

    fn is(&self, offset: usize, token: &Token) -> bool {
        self.tokens.get(self.at + offset).is_some_and(|(_, t)| t == token)
    }

    fn line(&self) -> usize {
        self.tokens.get(self.at).map_or(0, |(line, _)| *line)
    }

    fn read(&mut self, source: &mut Source) {
        while self.at < self.tokens.len() {
            match self.tokens[self.at].1.clone() {
                Token::Mark('{') => self.depth += 1,
                Token::Mark('}') => {
                    self.depth = self.depth.saturating_sub(1);
                    self.inner.pop_if(|(_, depth)| *depth == self.depth);
                }
                Token::Name(name) => match name.as_str() {
                    "mod" if self.name(1).is_some() && self.is(2, &Token::Mark('{')) => {
                        self.inner.push((self.name(1).unwrap_or_default().to_owned(), self.depth));
                        self.at += 1;
                    }
                    "use" => {
                        self.read_use(source);
                        continue;
                    }
                    "impl" if self.is_item() => self.read_impl(source),
                    "macro_rules" if self.is(1, &Token::Mark('!')) => {
                        source.macros.extend(self.name(2).map(str::to_owned));
                    }
                    _ if self.is(1, &Token::Of)
                        && !self.at.checked_sub(1).is_some_and(|b| self.tokens[b].1 == Token::Of) =>
                    {
                        self.read_path(source);
                        continue;
                    }
                    _ => {}
                },
                _ => {}
            }
            self.at += 1;
        }
    }

    /// Does an item begin here, and not a type such as `impl Fn()`?
    fn is_item(&self) -> bool {
        let before = self.at.checked_sub(1).map(|before| &self.tokens[before].1);
        before.is_none_or(|b| matches!(b, Token::Mark('{' | '}' | ';' | ']')) || *b == Token::Name("unsafe".into()))
    }

    /// A path in an expression or type.
    fn read_path(&mut self, source: &mut Source) {
        let line = self.line();
        let mut segments = Vec::new();
        while let Some(name) = self.name(0) {
            segments.push(name.to_owned());
            self.at += 1;
            if !(self.is(0, &Token::Of) && self.name(1).is_some()) {
                break;
            }
            self.at += 1;
        }
        source.paths.push(Path { line, segments: self.absolute(segments) });
    }

    /// `use` and its tree, up to the semicolon.
    fn read_use(&mut self, source: &mut Source) {
        let before = self.at.checked_sub(1).map(|at| &self.tokens[at].1);
        let is_public = before.is_some_and(|token| match token {
            Token::Mark(mark) => *mark == ')',
            Token::Name(name) => name == "pub",
            _ => false,
        });
        self.at += 1;
        let mut leaves = Vec::new();
        self.read_tree(Vec::new(), &mut leaves);
        for (path, alias) in leaves {
            let name = alias.or_else(|| path.segments.last().cloned()).unwrap_or_default();
            source.imports.insert(name.clone(), path.segments.clone());
            if is_public {
                source.exports.insert(name, (path, false));
            } else {
                source.paths.push(path);
            }
        }
    }

    fn read_tree(&mut self, mut before: Vec<String>, leaves: &mut Vec<(Path, Option<String>)>) {
        let line = self.line();
        loop {
            if self.is(0, &Token::Mark('{')) {
                self.at += 1;
                while !self.is(0, &Token::Mark('}')) && self.at < self.tokens.len() {
                    self.read_tree(before.clone(), leaves);
                    self.at += usize::from(self.is(0, &Token::Mark(',')));
                }
                self.at += 1;
                return;
            }
            match self.name(0) {
                // In a group: the module itself.
                Some("self") if !before.is_empty() => {}
                Some(name) => before.push(name.to_owned()),
                None => before.push("*".into()),
            }
            self.at += 1;
            if !self.is(0, &Token::Of) {
                break;
            }
            self.at += 1;
        }
        let mut alias = None;
        if self.name(0) == Some("as") {
            alias = self.name(1).map(str::to_owned);
            self.at += 2;
        }
        leaves.push((Path { line, segments: self.absolute(before) }, alias));
    }

    /// `impl Type {` and `impl Drop for Type`: whose methods are given here?
    fn read_impl(&self, source: &mut Source) {
        let mut depth = 0;
        let mut names = Vec::new();
        for (line, token) in &self.tokens[self.at + 1..] {
            match token {
                Token::Mark('<') => depth += 1,
                Token::Mark('>') => depth -= 1,
                Token::Mark('{' | ';') => break,
                Token::Name(name) if depth == 0 && name == "for" => {
                    if names.last().is_none_or(|(_, name)| name != "Drop") {
                        return;
                    }
                    names.clear();
                }
                Token::Name(name) if depth == 0 && name == "where" => break,
                Token::Name(name) if depth == 0 => names.push((*line, name.clone())),
                _ => {}
            }
        }
        source.methods_of.extend(names.last().cloned());
    }

    /// A path without `crate`, `self` and `super`; or as it is, if it begins with none of them.
    fn absolute(&self, segments: Vec<String>) -> Vec<String> {
        let mut here = self.module.clone();
        here.extend(self.inner.iter().map(|(name, _)| name.clone()));
        let mut rest = segments.as_slice();
        match rest.first().map(String::as_str) {
            Some("crate") => return [&["crate".to_owned()], &rest[1..]].concat(),
            Some("self") => rest = &rest[1..],
            Some("super") => {
                while rest.first().is_some_and(|s| s == "super") {
                    here.pop();
                    rest = &rest[1..];
                }
            }
            _ => return segments,
        }
        [&["crate".to_owned()], here.as_slice(), rest].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Source {
        Source::new(&["a".into(), "b".into()], text)
    }

    fn names(source: &Source) -> Vec<String> {
        source.paths.iter().map(|p| p.segments.join("::")).collect()
    }

    #[test]
    fn paths_are_seen_in_uses_and_in_bodies() {
        let source =
            of("use crate::x::{self, y, z::{Q as R}};\nfn f(v: &crate::m::T<'_>) { super::g(); self::h(); y::i() }");
        assert_eq!(
            names(&source),
            ["crate::x", "crate::x::y", "crate::x::z::Q", "crate::m::T", "crate::a::g", "crate::a::b::h", "y::i"]
        );
        assert_eq!(source.imports["R"].join("::"), "crate::x::z::Q");
        assert_eq!(source.paths[3].line, 2);
    }

    #[test]
    fn comments_and_literals_are_not_code() {
        let source = of("// crate::no\n/* crate::no */ const A: &str = \"crate::no \\\" crate::no\";\n\
                         const B: char = '\"'; const C: &[u8] = br#\"crate::no\"#; fn d<'a>(x: &'a str) { crate::yes() }");
        assert_eq!(names(&source), ["crate::yes"]);
    }

    #[test]
    fn modules_inside_a_file_shift_super() {
        let source = of("mod inner { fn f() { super::g(); super::super::h() } }\nfn i() { super::j() }");
        assert_eq!(names(&source), ["crate::a::b::g", "crate::a::h", "crate::a::j"]);
    }

    #[test]
    fn what_is_passed_on_is_told_from_what_is_used() {
        let source = of("pub use crate::x::One;\npub(crate) use crate::x::Two;\nfn f() -> Two {}");
        assert!(names(&source).is_empty());
        assert!(!source.exports["One"].1 && source.exports["Two"].1);
    }

    #[test]
    fn methods_and_destructors_have_an_owner() {
        let source =
            of("impl<T> A<T> {}\nimpl Drop for B {}\nimpl Clone for C {}\nimpl x::D {}\nfn f(g: impl Fn(E)) {}");
        assert_eq!(source.methods_of.iter().map(|(_, n)| n.as_str()).collect::<Vec<_>>(), ["A", "B", "D"]);
    }
}
