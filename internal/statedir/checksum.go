package statedir

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
)

// writerField is the last field of a JSON object with a checksum. Versions without checksums ignore it.
const writerField = `"writtenBy":`

// noBoot is the boot of a writer. The book of evictions of a version without checksums drops entries of another boot.
const noBoot = "none"

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// writer says who has written a file.
type writer struct {
	Node string `json:"node"`
	Boot string `json:"boot"`
	// Checksum is the CRC-32C of everything before this field, in hexadecimal digits.
	Checksum string `json:"crc32c"`
}

// WithChecksum adds to a JSON object a last field with the name of this node and a checksum. It is for files of which a
// damaged one could pass for a good one.
func WithChecksum(object []byte, node string) ([]byte, error) {
	body, isObject := bytes.CutSuffix(bytes.TrimSpace(object), []byte("}"))
	if !isObject {
		return nil, errors.New("add a checksum to what is no JSON object")
	}
	body = bytes.TrimSpace(body)
	if !bytes.HasSuffix(body, []byte("{")) {
		body = append(bytes.Clone(body), ',')
	}
	field, err := json.Marshal(writer{Node: node, Boot: noBoot, Checksum: sumOf(body)})
	if err != nil {
		return nil, err
	}
	return bytes.Join([][]byte{body, []byte(writerField), field, []byte("}\n")}, nil), nil
}

func sumOf(body []byte) string { return fmt.Sprintf("%08x", crc32.Checksum(body, castagnoli)) }

// Checked returns the object that WithChecksum got, which may be the last field of others. It returns an object without
// a checksum as it is, because a version without checksums has written it. The error says that the object was changed,
// or is that of another node; an empty node is any.
func Checked(data []byte, node string) ([]byte, error) {
	at := bytes.LastIndex(data, []byte(writerField))
	if at < 0 {
		return data, nil
	}
	body, rest := data[:at], data[at+len(writerField):]
	decoder := json.NewDecoder(bytes.NewReader(rest))
	var by writer
	if decoder.Decode(&by) != nil {
		return data, nil // a field of that name in the object, or no JSON
	}
	end := bytes.TrimSpace(bytes.ReplaceAll(rest[decoder.InputOffset():], []byte("\n"), nil))
	object := append(bytes.TrimSuffix(bytes.TrimSpace(bytes.Clone(body)), []byte(",")), end...)
	switch {
	case by.Checksum != sumOf(body):
		return object, errors.New("its checksum is wrong, so it was changed")
	case node != "" && by.Node != node:
		return object, fmt.Errorf("it is that of the node %q, and this is %q", by.Node, node)
	}
	return object, nil
}

// LoadChecked reads a JSON file, as Read does, that was written with WithChecksum. Unknown fields are ignored, because
// a later version may have written them. A file that cannot be parsed, whose content is not valid or has a wrong
// checksum, or that is that of another node, is set aside, and the error is a *DamagedError; the value is filled as far
// as possible also then. An empty node is any. Valid may be nil.
func LoadChecked(path, node string, into any, valid func() error) error {
	data, err := Read(path)
	if err != nil {
		return err
	}
	object, wrong := Checked(data, node)
	err = json.Unmarshal(object, into)
	if err == nil && valid != nil {
		err = valid()
	}
	if err != nil || wrong != nil {
		return SetAside(path, errors.Join(wrong, err))
	}
	return nil
}
