package nodeconfig

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubeletconfigv1 "k8s.io/kubelet/config/v1"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/quartet-node/quartet/internal/redact"
)

const (
	providersKind    = "CredentialProviderConfig"
	providersVersion = "kubelet.config.k8s.io/v1"
)

// credentialVersions lists the versions of the file that the kubelet supports. Only the first one has tokenAttributes.
var credentialVersions = []string{providersVersion, "kubelet.config.k8s.io/v1beta1", "kubelet.config.k8s.io/v1alpha1"}

// CredentialProviders are the credential providers of a node.
type CredentialProviders struct {
	// Providers are validated, and the program of each exists. They are in the order in which their credentials are tried.
	Providers []kubeletconfigv1.CredentialProvider
	// BinDir is the directory of the programs. The name of a program is that of its provider.
	BinDir string
	// Hash is the digest of the files that the kubelet reports in its metrics; empty without files.
	Hash string
}

// ReadCredentialProviders reads a CredentialProviderConfig, or all files of a directory whose names end in .json, .yaml
// or .yml, merged in the order of their names. It checks that the program of each provider exists in binDir, and runs
// none. The error is an [Errors] with all problems. It contains no value of an environment variable.
func ReadCredentialProviders(path, binDir string) (CredentialProviders, error) {
	paths, err := credentialFiles(path)
	if err != nil {
		return CredentialProviders{}, Errors{fmt.Errorf("--%s: %w", flagProvidersConfig, err)}
	}
	var errs Errors
	var files []credentialFile
	hash := sha256.New()
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			errs = append(errs, fmt.Errorf("--%s: %w: name files that may be read", flagProvidersConfig, err))
			continue
		}
		// length prefixes keep different sets of files distinct
		hash.Write(binary.BigEndian.AppendUint64(nil, uint64(len(data))))
		hash.Write(data)
		file, wrong := decodeCredentialFile(path, data)
		files, errs = append(files, file), append(errs, wrong...)
	}
	errs = append(errs, givenTwice(files)...)
	errs = append(errs, findPlugins(files, binDir)...)
	if len(errs) > 0 {
		return CredentialProviders{}, errs
	}
	out := CredentialProviders{BinDir: binDir, Hash: fmt.Sprintf("sha256:%x", hash.Sum(nil))}
	for _, file := range files {
		out.Providers = append(out.Providers, file.providers...)
	}
	return out, nil
}

// credentialFiles returns the files at a path.
func credentialFiles(path string) ([]string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("%w: name a file or a directory that exists and may be read", err)
	}
	if !info.IsDir() {
		return []string{path}, nil
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, err
	}
	var paths []string
	for _, entry := range entries { // sorted by name
		if !entry.IsDir() && slices.Contains([]string{".json", ".yaml", ".yml"}, filepath.Ext(entry.Name())) {
			paths = append(paths, filepath.Join(path, entry.Name()))
		}
	}
	if len(paths) == 0 {
		return nil, fmt.Errorf("%s has no file whose name ends in .json, .yaml or .yml: put a %s there", path, providersKind)
	}
	return paths, nil
}

// credentialFile is one file.
type credentialFile struct {
	path      string
	index     index
	providers []kubeletconfigv1.CredentialProvider
}

// decodeCredentialFile decodes a file strictly and validates it. It returns all problems in the order of lines.
func decodeCredentialFile(path string, data []byte) (credentialFile, []error) {
	file := credentialFile{path: path, index: index{}}
	errs := &problems{file: path, index: file.index}
	root, err := parseOneDocument(data)
	if err == nil && root == nil {
		err = errors.New("there is nothing in the file: write a " + providersKind)
	}
	if err != nil {
		errs.addSyntax(errors.New(redact.YAML(strings.Replace(err.Error(), wantKind, providersKind, 1))))
		return file, errs.sorted()
	}
	indexNode(root, "", errs)
	var fields map[string]json.RawMessage
	asJSON, err := yaml.YAMLToJSON(data)
	if err == nil {
		err = json.Unmarshal(asJSON, &fields)
	}
	if err != nil {
		errs.addSyntax(fmt.Errorf("this is not YAML: %s", redact.YAML(err.Error())))
		return file, errs.sorted()
	}
	file.decode(fields, errs)
	if len(errs.list) == 0 { // a field that could not be decoded has no value to validate
		validateCredentialProviders(file.providers, errs)
	}
	return file, errs.sorted()
}

// decode decodes one field after the other, so that an invalid field does not hide other problems.
func (f *credentialFile) decode(fields map[string]json.RawMessage, errs *problems) {
	var kind metav1.TypeMeta
	var providers []map[string]json.RawMessage
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		switch name {
		case "apiVersion", "kind":
			decodeCredentialField(name, name, fields[name], &kind, errs)
		case "providers":
			if json.Unmarshal(fields[name], &providers) != nil {
				errs.add(name, "must be a list of mappings")
			}
		default:
			errs.add(name, "there is no such field in a "+providersKind+": remove it")
		}
	}
	checkCredentialKind(kind, errs)
	for i, given := range providers {
		provider, at := kubeletconfigv1.CredentialProvider{}, fmt.Sprintf("providers[%d]", i)
		for _, name := range slices.Sorted(maps.Keys(given)) {
			if name == "tokenAttributes" && kind.APIVersion != providersVersion {
				errs.add(
					at+"."+name,
					fmt.Sprintf("there is no such field in %s: write apiVersion: %s", kind.APIVersion, providersVersion),
				)
				continue
			}
			decodeCredentialField(at+"."+name, name, given[name], &provider, errs)
		}
		f.providers = append(f.providers, provider)
	}
}

// decodeCredentialField decodes one field. Its errors contain no value, because it may be that of an environment
// variable.
func decodeCredentialField(at, name string, value json.RawMessage, into any, errs *problems) {
	one, err := json.Marshal(map[string]json.RawMessage{name: value})
	if err != nil {
		errs.add(at, "cannot be read")
		return
	}
	strict, err := kjson.UnmarshalStrict(one, into)
	for _, problem := range strict {
		field := at
		var located kjson.FieldError
		if errors.As(problem, &located) {
			field = at + strings.TrimPrefix(located.FieldPath(), name)
		}
		errs.add(field, "there is no such field in a "+providersKind+": remove it")
	}
	var wrongType *json.UnmarshalTypeError
	switch {
	case err == nil:
	case errors.As(err, &wrongType):
		errs.add(
			at+strings.TrimPrefix(wrongType.Field, name),
			fmt.Sprintf("must be %s, not %s", typeName(wrongType.Type), redact.JSONType(wrongType.Value)),
		)
	default:
		errs.add(at, "must be a duration, for example 10m")
	}
}

func checkCredentialKind(kind metav1.TypeMeta, errs *problems) {
	if !slices.Contains(credentialVersions, kind.APIVersion) {
		errs.add(
			"apiVersion",
			fmt.Sprintf("is %q, must be one of %s", kind.APIVersion, strings.Join(credentialVersions, ", ")),
		)
	}
	if kind.Kind != providersKind {
		errs.add("kind", fmt.Sprintf("is %q, must be %s", kind.Kind, providersKind))
	}
}
