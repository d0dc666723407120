package containerlog

import (
	"bufio"
	"bytes"
	"errors"
	"time"
)

// errLimit ends a log of which as much was read as is wanted.
var errLimit = errors.New("the limit is reached")

// printer writes what is shown of the lines of a log.
type printer struct {
	out        *bufio.Writer
	since      time.Time
	timestamps bool
	// left is how many bytes may be written yet, if limited.
	limited bool
	left    int64
}

// line returns what is called with each line.
func (p *printer) line() func(line []byte) error {
	begun := false // the line before goes on in the next one
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

// write fails with errLimit when there is no more to be written.
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

// split returns when a line of a log was written and what a container wrote of it: TIME STREAM TAGS TEXT. The text of one with the
// tag P goes on in the next line. What is no such line is shown as it is, and has no time.
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
