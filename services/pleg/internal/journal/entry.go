package journal

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"strconv"

	"google.golang.org/protobuf/encoding/protojson"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/services/pleg/internal/record"
)

// version is the version of the file's format.
const version = 1

// entry is one line of the file: "CRC JSON", the checksum (CRC-32C) of the rest of the line in 8 hexadecimal digits.
type entry struct {
	// Version is the version of the format.
	Version int `json:"version"`
	// Line is the number of the line, so that a file that lost lines while it was written is found: its first line may
	// otherwise pass for all pods. 0 is a line of v0.1.0.
	Line int `json:"line,omitempty"`
	// Tokens are the tokens of followers that have received everything up to this line.
	Tokens [][]byte `json:"tokens"`
	// Pods are the pods with changes since the previous line; all pods in the first line.
	Pods []json.RawMessage `json:"pods,omitempty"`
	// Gone are the UIDs of pods that the runtime does not have any more.
	Gone []string `json:"gone,omitempty"`
}

// pod is a pod in an entry.
type pod struct {
	// Status is the PodStatus of a record.Published.
	Status json.RawMessage `json:"status"`
	// Phases are the phases of a record.Published; null if the pod was never inspected.
	Phases map[string]string `json:"phases"`
	// Whole is the Config.Observer of a record.Published that is whole; empty if it is not.
	Whole string `json:"whole,omitempty"`
}

// cut is the content of a file.
type cut struct {
	tokens    [][]byte
	published map[string]record.Published
	// pods holds the pods in their encoded form.
	pods map[string]json.RawMessage
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func (e entry) encode() ([]byte, error) {
	data, err := json.Marshal(e)
	if err != nil {
		return nil, fmt.Errorf("encoding the journal entry: %w", err)
	}
	return append(fmt.Appendf(nil, "%08x %s", crc32.Checksum(data, castagnoli), data), '\n'), nil
}

func encodePod(published record.Published, observer string) (json.RawMessage, error) {
	status, err := protojson.Marshal(published.Status)
	if err != nil {
		return nil, err
	}
	encoded := pod{Status: status, Phases: published.Phases}
	if published.Whole {
		encoded.Whole = observer
	}
	return json.Marshal(encoded)
}

func decodePod(data json.RawMessage, observer string) (record.Published, error) {
	var p pod
	if err := json.Unmarshal(data, &p); err != nil {
		return record.Published{}, err
	}
	status := &lifecyclev1.PodStatus{}
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(p.Status, status); err != nil {
		return record.Published{}, err
	}
	if status.GetUid() == "" {
		return record.Published{}, errors.New("a pod has no UID")
	}
	return record.Published{Status: status, Phases: p.Phases, Whole: p.Whole != "" && p.Whole == observer}, nil
}

// decode decodes a file for an observer. It ignores an incomplete last line; any other damaged line is an error.
func decode(data []byte, observer string) (*cut, error) {
	c := &cut{published: map[string]record.Published{}, pods: map[string]json.RawMessage{}}
	for number := 1; len(data) > 0; number++ {
		line, rest, whole := bytes.Cut(data, []byte("\n"))
		e, err := decodeLine(line)
		cutOff := !whole || len(rest) == 0 && errors.Is(err, errChecksum)
		switch {
		case number > 1 && cutOff:
			return c, nil
		case !whole:
			return nil, errors.New("line 1 is cut off")
		case err == nil && e.Line != 0 && e.Line != number:
			err = fmt.Errorf("it was written as line %d: lines before it are lost", e.Line)
		case err == nil:
			err = c.take(e, observer)
		}
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
		data = rest
	}
	if len(c.tokens) == 0 {
		return nil, errors.New("the file is empty")
	}
	return c, nil
}

// errChecksum is the error of a damaged line.
var errChecksum = errors.New("the checksum is not that of the line")

func decodeLine(line []byte) (e entry, err error) {
	sum, data, _ := bytes.Cut(line, []byte(" "))
	want, err := strconv.ParseUint(string(sum), 16, 32)
	if err != nil || uint32(want) != crc32.Checksum(data, castagnoli) {
		return e, errChecksum
	}
	if err := json.Unmarshal(data, &e); err != nil {
		return e, err
	}
	if e.Version != version {
		return e, fmt.Errorf("it is of version %d, and this pleg reads version %d", e.Version, version)
	}
	return e, nil
}

// take adds the content of a line.
func (c *cut) take(e entry, observer string) error {
	for _, data := range e.Pods {
		published, err := decodePod(data, observer)
		if err != nil {
			return err
		}
		c.published[published.Status.GetUid()], c.pods[published.Status.GetUid()] = published, data
	}
	for _, uid := range e.Gone {
		delete(c.published, uid)
		delete(c.pods, uid)
	}
	c.tokens = e.Tokens
	return nil
}
