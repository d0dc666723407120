package show

import (
	"bytes"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/cli-runtime/pkg/printers"
)

// TestATemplatePrintsAsThatOfKubectl compares with the printer of cli-runtime, which is kubectl's.
func TestATemplatePrintsAsThatOfKubectl(t *testing.T) {
	object := &unstructured.Unstructured{Object: map[string]any{
		"kind": "Pod",
		"metadata": map[string]any{
			"name": "web", "generation": int64(12345678), "labels": map[string]any{"a.b/c": "d"},
		},
		"spec": map[string]any{
			"containers": []any{
				map[string]any{"name": "one", "args": []any{"x", "y"}}, map[string]any{"name": "two"},
			},
			"nothing": nil,
		},
		"share": 0.25, "secret": "aGVsbG8=", "text": "<a & b>",
	}}
	for _, text := range []string{
		`{{.kind}} {{.metadata.name}} {{.metadata.generation}} {{.share}} {{.text}} {{.spec.missing}} {{.spec.nothing}}`,
		`{{range $i, $c := .spec.containers}}{{$i}}={{$c.name}}{{if $c.args}} {{join $c.args}}{{end}};{{end}}`,
		`{{range $i, $c := .spec.containers}}{{$i}}={{$c.name}} {{len $c.args}};{{end}}`,
		`{{range $k, $v := .metadata}}{{$k}} {{$v}};{{else}}none{{end}}`,
		`{{index .metadata.labels "a.b/c"}} {{printf "%q %d" .kind .metadata.generation}} {{.secret | base64decode}}`,
		`{{base64decode "%"}}`, `{{.kind.name}}`, `{{index .spec.containers 2}}`, `{{.metadata.name.Method}}`,
		`{{.`, `{{unknown}}`,
		`{{exists . "metadata" "labels" "a.b/c"}} {{exists .metadata "labels" "b"}} {{exists .metadata "labels" 1}}`,
		`{{exists .}}`,
		`{{exists .spec "containers" 1 "name"}} {{exists .spec "containers" 2}} {{exists .spec "containers" -1}}`,
		`{{exists .spec "containers" "one"}} {{exists .spec "nothing"}} {{exists .spec "nothing" "at"}} {{exists .share 1}}`,
		`{{define "T"}}[{{.name}}]{{end}}{{range .spec.containers}}{{template "T" .}}{{end}}{{with .none}}x{{else}}y{{end}}`,
		`{{if and (eq .kind "Pod") (gt .metadata.generation 5) (not .none)}}yes{{end}}{{html .text}}{{js .text}}`,
	} {
		var want, got bytes.Buffer
		theirs, wantErr := printers.NewGoTemplatePrinter([]byte(text))
		ours, err := newGoTemplatePrinter(text)
		if err == nil && wantErr == nil {
			theirs.AllowMissingKeys(true)
			wantErr, err = theirs.PrintObj(object, &want), ours.PrintObj(object, &got)
		}
		if (err == nil) != (wantErr == nil) {
			t.Errorf("%s: error %v, want %v", text, err, wantErr)
		}
		if wantErr == nil && got.String() != want.String() {
			t.Errorf("%s prints %q, want %q", text, got.String(), want.String())
		}
	}
}
