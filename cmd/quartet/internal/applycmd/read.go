package applycmd

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// maxFile bounds what is read of one file.
const maxFile = 10 << 20

// standardInput is how the standard input is named.
const standardInput = "-"

// document is one document of a manifest.
type document struct {
	// file is where it stands; number counts the documents of the file from 1, and is 0 when there is one only.
	file   string
	number int
	// pod is what it says, unless err says why it is none.
	pod *v1.Pod
	err error
}

// String says where the document stands, and which pod it is.
func (d document) String() string {
	where := d.file
	if d.number > 0 {
		where += fmt.Sprintf(": document %d", d.number)
	}
	if d.pod != nil {
		where += ": " + podName{d.pod.Namespace, d.pod.Name}.String()
	}
	return where
}

// documents calls visit with each document of a file, of a directory's manifests or of the standard input.
func documents(path string, stdin io.Reader, visit func(document) error) error {
	if path == standardInput {
		return documentsIn("standard input", stdin, visit)
	}
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("reading the manifests: %w", err)
	}
	if !info.IsDir() {
		return documentsOf(path, visit)
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return fmt.Errorf("reading the manifests: %w", err)
	}
	found := false
	for _, entry := range entries {
		name := entry.Name()
		if strings.HasPrefix(name, ".") || !slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(name)) {
			continue
		}
		found = true
		if err := documentsOf(filepath.Join(path, name), visit); err != nil {
			return err
		}
	}
	if !found {
		return fmt.Errorf("%s has no manifests: they are files that end in .yaml, .yml or .json", path)
	}
	return nil
}

// documentsOf visits the documents of one file. That it cannot be read is of no concern to others.
func documentsOf(path string, visit func(document) error) (err error) {
	info, err := os.Stat(path)
	if err == nil && info.IsDir() {
		err = errors.New("it is a directory")
	}
	if err != nil {
		return visit(document{file: path, err: err})
	}
	file, err := os.Open(path)
	if err != nil {
		return visit(document{file: path, err: err})
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	return documentsIn(path, file, visit)
}

// documentsIn visits the documents of a stream.
func documentsIn(name string, from io.Reader, visit func(document) error) error {
	data, err := io.ReadAll(io.LimitReader(from, maxFile+1))
	if err == nil && len(data) > maxFile {
		err = fmt.Errorf("it has more than %d MiB", maxFile>>20)
	}
	if err != nil {
		return visit(document{file: name, err: err})
	}
	var texts [][]byte
	for reader := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(data))); ; {
		text, err := reader.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return visit(document{file: name, err: err})
		}
		texts = append(texts, text)
	}
	texts = slices.DeleteFunc(texts, isBlank)
	if len(texts) == 0 {
		return visit(document{file: name, err: errors.New("it is empty: write a Pod into it")})
	}
	for i, text := range texts {
		d := document{file: name}
		if len(texts) > 1 {
			d.number = i + 1
		}
		d.pod, d.err = decode(text)
		if err := visit(d); err != nil {
			return err
		}
	}
	return nil
}

// isBlank reports whether a document has nothing but space and comments.
func isBlank(text []byte) bool {
	for line := range bytes.Lines(text) {
		line = bytes.TrimSpace(line)
		if len(line) > 0 && line[0] != '#' && !bytes.Equal(line, []byte("---")) {
			return false
		}
	}
	return true
}

// decode makes a pod of a document, strictly: what is not understood is an error, and so is what is said twice.
func decode(text []byte) (*v1.Pod, error) {
	data, err := yaml.YAMLToJSONStrict(text)
	if err != nil {
		return nil, errors.New(strings.Join(strings.Fields(strings.TrimPrefix(err.Error(), "error converting YAML to JSON: ")), " "))
	}
	pod := &v1.Pod{}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(data, &pod.TypeMeta); err != nil {
		return nil, fmt.Errorf("it is no object: %w", err)
	}
	if pod.APIVersion != "v1" || pod.Kind != "Pod" {
		return nil, fmt.Errorf("it must have apiVersion v1 and kind Pod, and has %q and %q", pod.APIVersion, pod.Kind)
	}
	strict, err := kjson.UnmarshalStrict(data, pod, kjson.DisallowDuplicateFields, kjson.DisallowUnknownFields)
	if err != nil {
		return nil, err
	}
	if len(strict) == 0 {
		return pod, nil
	}
	texts := make([]string, 0, len(strict))
	for _, e := range strict {
		texts = append(texts, "\n    "+e.Error())
	}
	return nil, errors.New("check the spelling and the indentation of:" + strings.Join(texts, ""))
}
