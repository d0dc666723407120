package nodeconfig

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"
	"sigs.k8s.io/yaml"
)

// File is a configuration file that has been read.
type File struct {
	// Path is absolute.
	Path string
	Data []byte
}

// Setting sets one field and overrides the files.
type Setting struct {
	// Origin names the setting in errors, for example "--max-pods".
	Origin string
	// Field is the path of the field, for example "authentication.anonymous.enabled".
	Field string
	// Value is a value as encoding/json decodes it.
	Value any
	// Add adds the entries of a mapping instead of replacing it.
	Add bool
}

// Sources are the parts of one configuration. Each overrides the ones before it.
type Sources struct {
	// Defaults are fields whose default differs. The file overrides them.
	Defaults []Setting
	// File is the configuration file; nil for none.
	File *File
	// DropIns are the files of the drop-in directory, in the order in which they apply; nil without such a directory.
	DropIns []File
	// Settings apply last.
	Settings []Setting
	// WorkDir is the directory for relative paths of drop-ins and settings. Those of File are relative to File.
	WorkDir string
}

// Merged is the configuration that results from sources.
type Merged struct {
	// Kubelet is the configuration with defaults.
	Kubelet kubeletconfigv1beta1.KubeletConfiguration
	// YAML is a configuration file that decodes to Kubelet. A comment before each field names the sources that have set
	// it.
	YAML []byte
}

// Merge merges sources as the kubelet does: the file with its defaults, then each drop-in as a JSON merge patch (RFC
// 7386), so that mappings are merged, lists are replaced and null restores the default; then the settings. It returns
// all problems, each with the file and line, or the origin, of the field.
func Merge(sources Sources) (Merged, []error) {
	m := merger{places: map[string]place{}, origins: map[string][]string{}}
	m.base(sources)
	for _, file := range sources.DropIns {
		m.dropIn(file)
	}
	if len(m.errs) > 0 {
		return Merged{}, m.errs
	}
	if sources.DropIns != nil {
		if err := m.resetReportFrequency(); err != nil {
			return Merged{}, []error{err}
		}
	}
	if _, set := m.fields["evictionHard"]; !set && m.origins["evictionHard"] != nil {
		// a kubelet without a configuration file has no thresholds: their defaults are those of a file
		m.fields["evictionHard"] = map[string]any{}
	}
	for _, setting := range sources.Settings {
		m.set(setting)
	}
	merged, err := m.finish(sources.WorkDir)
	if err != nil {
		return Merged{}, []error{err}
	}
	return merged, m.judge(&merged.Kubelet)
}

// merger holds a configuration during the merge.
type merger struct {
	// fields holds every field, including defaults.
	fields map[string]any
	// places maps the path of each field to the place that set it last.
	places map[string]place
	// origins maps each top-level field to its sources. Fields without an entry have their defaults.
	origins map[string][]string
	file    string
	errs    []error
}

// place is the place where a field was set.
type place struct {
	file string
	line int
}

func (p place) String() string {
	if p.line == 0 {
		return p.file
	}
	return fmt.Sprintf("%s:%d", p.file, p.line)
}

// base starts with the file and the defaults.
func (m *merger) base(sources Sources) {
	var cfg kubeletconfigv1beta1.KubeletConfiguration
	set := index{}
	if sources.File != nil {
		m.file = sources.File.Path
		var errs []error
		if cfg, _, set, errs = readFields(*sources.File, false); len(errs) > 0 {
			m.errs = append(m.errs, errs...)
			return
		}
		m.cameFrom(sources.File.Path, set)
	}
	cfg.APIVersion, cfg.Kind = wantAPIVersion, wantKind
	withDefaults := cfg
	setDefaults(&withDefaults)
	if sources.File != nil {
		resolvePaths(sources.File.Path, &withDefaults)
	}
	m.fields = m.mapping(&withDefaults)
	m.keepEmpty(sources, &withDefaults)
	if cfg.ImageServiceEndpoint == "" {
		// Its default is containerRuntimeEndpoint, wherever that is set.
		delete(m.fields, "imageServiceEndpoint")
	}
	for _, setting := range sources.Defaults {
		if !set.has(setting.Field) {
			m.set(setting)
		}
	}
}

// keepEmpty restores empty values that differ from unset ones, because JSON omits them.
func (m *merger) keepEmpty(sources Sources, cfg *kubeletconfigv1beta1.KubeletConfiguration) {
	switch {
	case sources.File == nil:
		// The thresholds of a kubelet without a file are not part of the base that drop-ins are merged into.
		delete(m.fields, "evictionHard")
	case len(cfg.EvictionHard) == 0:
		m.fields["evictionHard"] = map[string]any{}
	}
	// If drop-ins are merged, the kubelet restores the default.
	if sources.DropIns == nil && cfg.EnforceNodeAllocatable != nil && len(cfg.EnforceNodeAllocatable) == 0 {
		m.fields["enforceNodeAllocatable"] = []any{}
	}
}

// readFields decodes a file strictly and without defaults: as a struct, and as a mapping of the fields in the file. In
// a patch every field may be null.
func readFields(file File, patch bool) (kubeletconfigv1beta1.KubeletConfiguration, map[string]any, index, []error) {
	var cfg kubeletconfigv1beta1.KubeletConfiguration
	errs := &problems{file: file.Path, index: index{}}
	root, err := parseOneDocument(file.Data)
	switch {
	case err != nil:
		errs.addSyntax(err)
		return cfg, nil, nil, errs.sorted()
	case root != nil:
		indexNode(root, "", errs)
		data := file.Data
		if patch {
			data = withoutNulls(data)
		}
		decodeFields(data, root, &cfg, errs)
	}
	checkKind(&cfg, errs)
	if len(errs.list) > 0 {
		return cfg, nil, nil, errs.sorted()
	}
	asJSON, err := yaml.YAMLToJSON(file.Data)
	if err != nil {
		errs.addSyntax(err)
		return cfg, nil, nil, errs.sorted()
	}
	fields, err := decodeMapping(asJSON)
	if err != nil {
		errs.addAt(0, "", err.Error())
		return cfg, nil, nil, errs.sorted()
	}
	return cfg, fields, errs.index, nil
}

// withoutNulls returns a file without its null fields. It returns an invalid file unchanged, so that its reader reports
// the error.
func withoutNulls(data []byte) []byte {
	asJSON, err := yaml.YAMLToJSON(data)
	if err != nil {
		return data
	}
	fields, err := decodeMapping(asJSON)
	if err != nil {
		return data
	}
	pruned, err := json.Marshal(mergePatch(nil, fields))
	if err != nil {
		return data
	}
	return pruned
}

// dropIn merges one drop-in into the fields.
func (m *merger) dropIn(file File) {
	_, fields, set, errs := readFields(file, true)
	m.errs = append(m.errs, errs...)
	if len(m.errs) > 0 {
		return
	}
	m.cameFrom(file.Path, set)
	m.fields = mergePatch(m.fields, fields)
}

// resetReportFrequency gives nodeStatusReportFrequency its default if a drop-in has reset it. The default depends on
// nodeStatusUpdateFrequency. As in the kubelet, that of the files counts, and not that of the settings.
func (m *merger) resetReportFrequency() error {
	cfg, err := m.decoded(m.fields)
	if err != nil || cfg.NodeStatusReportFrequency.Duration != 0 {
		return err
	}
	setDefaults(&cfg)
	m.fields["nodeStatusReportFrequency"] = cfg.NodeStatusReportFrequency.Duration.String()
	return nil
}

// mergePatch implements RFC 7386 for a patch that is an object.
func mergePatch(target, patch map[string]any) map[string]any {
	merged := maps.Clone(target)
	if merged == nil {
		merged = map[string]any{}
	}
	for name, value := range patch {
		switch value := value.(type) {
		case nil:
			delete(merged, name)
		case map[string]any:
			below, ok := merged[name].(map[string]any)
			if !ok {
				below = nil
			}
			merged[name] = mergePatch(below, value)
		default:
			merged[name] = value
		}
	}
	return merged
}

// cameFrom records that a file has set fields.
func (m *merger) cameFrom(file string, set index) {
	for field, line := range set {
		m.places[field] = place{file: file, line: line}
		if !strings.ContainsAny(field, ".[") {
			m.origins[field] = append(m.origins[field], place{file: file, line: line}.String())
		}
	}
}

// set sets one field.
func (m *merger) set(setting Setting) {
	path := strings.Split(setting.Field, ".")
	m.origins[path[0]] = append(m.origins[path[0]], setting.Origin)
	if !setting.Add {
		maps.DeleteFunc(m.places, func(field string, _ place) bool {
			return field == setting.Field || strings.HasPrefix(field, setting.Field+".") ||
				strings.HasPrefix(field, setting.Field+"[")
		})
	}
	m.places[setting.Field] = place{file: setting.Origin}
	at := m.fields
	for _, name := range path[:len(path)-1] {
		below, ok := at[name].(map[string]any)
		if !ok {
			below = map[string]any{}
			at[name] = below
		}
		at = below
	}
	last := path[len(path)-1]
	added, isMapping := setting.Value.(map[string]any)
	if setting.Add && isMapping {
		existing, ok := at[last].(map[string]any)
		if !ok {
			existing = map[string]any{}
		}
		at[last] = mergePatch(existing, added)
		return
	}
	at[last] = setting.Value
}

// finish returns the configuration and an equivalent file.
func (m *merger) finish(workDir string) (Merged, error) {
	want, err := m.decoded(m.fields)
	if err != nil {
		return Merged{}, err
	}
	setDefaults(&want)
	resolvePaths(filepath.Join(workDir, "settings"), &want)
	doc := map[string]any{}
	full := m.mapping(&want)
	for field := range m.origins {
		if value, ok := m.fields[field]; ok {
			doc[field] = value
		}
	}
	for _, field := range pathFields {
		if value, ok := full[field]; ok && m.origins[field] != nil {
			doc[field] = value
		}
	}
	doc["apiVersion"], doc["kind"] = wantAPIVersion, wantKind
	// A field is written too if the smaller file would change it, because some defaults depend on other fields.
	got, err := m.decoded(doc)
	if err != nil {
		return Merged{}, err
	}
	setDefaults(&got)
	small := m.mapping(&got)
	for field, value := range full {
		if !sameJSON(value, small[field]) {
			doc[field] = value
		}
	}
	text, err := m.render(doc)
	return Merged{Kubelet: want, YAML: text}, err
}

// pathFields are the top-level fields that hold paths, which resolvePaths may have made absolute.
var pathFields = []string{
	"staticPodPath",
	"podLogsDir",
	"resolvConf",
	"tlsCertFile",
	"tlsPrivateKeyFile",
	"authentication",
}

func (m *merger) decoded(fields map[string]any) (kubeletconfigv1beta1.KubeletConfiguration, error) {
	var cfg kubeletconfigv1beta1.KubeletConfiguration
	data, err := json.Marshal(fields)
	if err == nil {
		err = json.Unmarshal(data, &cfg)
	}
	var wrongType *json.UnmarshalTypeError
	if errors.As(err, &wrongType) {
		return cfg, m.located(
			&FieldError{
				Field:   wrongType.Field,
				Problem: fmt.Sprintf("must be %s, not %s", typeName(wrongType.Type), wrongType.Value),
			},
		)
	}
	if err != nil {
		return cfg, fmt.Errorf("merging the configuration: %w", err)
	}
	return cfg, nil
}

// mapping returns a configuration as a JSON object.
func (m *merger) mapping(cfg *kubeletconfigv1beta1.KubeletConfiguration) map[string]any {
	data, err := json.Marshal(cfg)
	if err != nil {
		m.errs = append(m.errs, fmt.Errorf("merging the configuration: %w", err))
		return map[string]any{}
	}
	fields, err := decodeMapping(data)
	if err != nil {
		m.errs = append(m.errs, fmt.Errorf("merging the configuration: %w", err))
		return map[string]any{}
	}
	return fields
}

// decodeMapping decodes a JSON object without converting its numbers.
func decodeMapping(data []byte) (map[string]any, error) {
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber()
	fields := map[string]any{}
	if err := decoder.Decode(&fields); err != nil {
		return nil, err
	}
	return fields, nil
}

func sameJSON(a, b any) bool {
	left, errLeft := json.Marshal(a)
	right, errRight := json.Marshal(b)
	return errLeft == nil && errRight == nil && bytes.Equal(left, right)
}

// render writes the fields, each preceded by its origins.
func (m *merger) render(doc map[string]any) ([]byte, error) {
	var out bytes.Buffer
	for _, field := range slices.Sorted(maps.Keys(doc)) {
		text, err := yaml.Marshal(map[string]any{field: doc[field]})
		if err != nil {
			return nil, fmt.Errorf("writing the field %s: %w", field, err)
		}
		if from := m.origins[field]; from != nil {
			fmt.Fprintf(&out, "# %s\n", strings.ReplaceAll(strings.Join(from, ", "), "\n", " "))
		}
		out.Write(text)
	}
	return out.Bytes(), nil
}

// judge validates the configuration.
func (m *merger) judge(cfg *kubeletconfigv1beta1.KubeletConfiguration) []error {
	errs := &problems{index: index{}}
	validate(cfg, errs)
	out := slices.Clone(m.errs)
	for _, err := range errs.list {
		out = append(out, m.located(err))
	}
	slices.SortFunc(out, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return out
}

// located adds the place where the field of an error was set.
func (m *merger) located(err *FieldError) *FieldError {
	for at := err.Field; at != ""; at = parentField(at) {
		if where, ok := m.places[at]; ok {
			return &FieldError{File: where.file, Line: where.line, Field: err.Field, Problem: err.Problem}
		}
	}
	file := m.file
	if file == "" {
		file = "the configuration"
	}
	return &FieldError{File: file, Field: err.Field, Problem: err.Problem}
}
