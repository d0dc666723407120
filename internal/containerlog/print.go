package containerlog

import (
	"bufio"
	"bytes"
	"errors"
	"time"
)

// errLimit ends the reading of a log when Options.Limit is reached.
var errLimit = errors.New("the limit is reached")

// printer writes the lines of a log in the requested form.
type printer struct {
	out        *bufio.Writer
	since      time.Time
	timestamps bool
	// left is the number of bytes that may still be written, if limited.
	limited bool
	left    int64
}

// line returns the function that prints each line.
func (p *printer) line() func(line []byte) error {
	begun := false // the previous line continues in the next one
	return func(line []byte) error {
		at, text := split(line)
		goesOn := begun
		begun = !bytes.HasSuffix(text, []byte("\n"))
		if !p.since.IsZero() && len(at) > 0 {
			written, err := time.Parse(time.RFC3339Nano, string(at))
			if err == nil && written.Before(p.since) {
				begun = false
				return nil
			}
		}
		if p.timestamps && len(at) > 0 && !goesOn {
			if err := p.write(append(bytes.Clone(at), ' ')); err != nil {
				return err
			}
		}
		return p.write(text)
	}
}

// write writes text. It fails with errLimit when the limit is reached.
func (p *printer) write(text []byte) error {
	if !p.limited {
		_, err := p.out.Write(text)
		return err
	}
	if int64(len(text)) > p.left {
		text = text[:p.left]
	}
	p.left -= int64(len(text))
	if _, err := p.out.Write(text); err != nil {
		return err
	}
	if p.left == 0 {
		return errLimit
	}
	return nil
}

// split splits a line of a log, TIME STREAM TAGS TEXT, into its time and its text. The text of a line with the tag P
// continues in the next line. A line in another form is returned unchanged, without a time.
func split(line []byte) (at, text []byte) {
	fields := bytes.SplitN(line, []byte(" "), 4)
	if len(fields) < 4 || (string(fields[1]) != "stdout" && string(fields[1]) != "stderr") {
		return nil, line
	}
	if tag, _, _ := bytes.Cut(fields[2], []byte(":")); string(tag) == "P" {
		return fields[0], bytes.TrimSuffix(fields[3], []byte("\n"))
	}
	return fields[0], fields[3]
}
