//! Just enough of `multipart/form-data`: the values of a form's fields, files included.

/// The form's fields in order; `None` when the body is no form with this content type.
pub(crate) fn fields<'a>(content_type: &str, body: &'a [u8]) -> Option<Vec<(String, &'a [u8])>> {
    let (kind, parameters) = content_type.split_once(';')?;
    if !kind.trim().eq_ignore_ascii_case("multipart/form-data") {
        return None;
    }
    let boundary = parameters.split(';').find_map(|one| one.trim().strip_prefix("boundary="))?;
    let mark = format!("--{}", boundary.trim_matches('"'));
    let mut rest = after(body, mark.as_bytes())?;
    let mut fields = Vec::new();
    while !rest.starts_with(b"--") {
        let part = rest.strip_prefix(b"\r\n")?;
        let end = find(part, format!("\r\n{mark}").as_bytes())?;
        fields.push(field(&part[..end])?);
        rest = &part[end + 2 + mark.len()..];
    }
    Some(fields)
}

fn field(part: &[u8]) -> Option<(String, &[u8])> {
    let split = find(part, b"\r\n\r\n")?;
    let head = std::str::from_utf8(&part[..split]).ok()?;
    let name = head.split("name=\"").nth(1)?.split('"').next()?;
    Some((name.to_owned(), &part[split + 4..]))
}

fn after<'a>(bytes: &'a [u8], mark: &[u8]) -> Option<&'a [u8]> {
    find(bytes, mark).map(|at| &bytes[at + mark.len()..])
}

fn find(bytes: &[u8], mark: &[u8]) -> Option<usize> {
    bytes.windows(mark.len()).position(|window| window == mark)
}

#[cfg(test)]
mod tests {
    use super::fields;

    const FORM: &[u8] = b"--x\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\ntiny\r\n--x\r\n\
        Content-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\nContent-Type: audio/wav\r\n\r\n\0\r\n-\xff\r\n--x--\r\n";

    #[test]
    fn values_come_as_they_are() {
        let got = fields("multipart/form-data; boundary=x", FORM).unwrap();
        assert_eq!(got[0], ("model".to_owned(), &b"tiny"[..]));
        assert_eq!(got[1], ("file".to_owned(), &b"\0\r\n-\xff"[..]));
        assert_eq!(got.len(), 2);
    }

    #[test]
    fn what_is_no_form_is_none() {
        for (kind, body) in [
            ("application/json", FORM),
            ("multipart/form-data", FORM),
            ("multipart/form-data; boundary=y", FORM),
            ("multipart/form-data; boundary=x", &FORM[..FORM.len() - 8]),
        ] {
            assert_eq!(fields(kind, body), None, "{kind}");
        }
    }
}
