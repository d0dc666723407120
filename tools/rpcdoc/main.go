// Command rpcdoc is a plugin of protoc and buf that writes docs/reference/rpc.md from the comments of proto/. It writes
// intro.txt and then each file of the contracts: its service with its RPCs, its messages and its enums.
package main

import (
	_ "embed"
	"fmt"
	"path"
	"strings"

	"google.golang.org/protobuf/compiler/protogen"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// output is the name of the document.
const output = "rpc.md"

// width is the length of the longest line of text.
const width = 118

//go:embed intro.txt
var intro string

func main() {
	protogen.Options{}.Run(func(plugin *protogen.Plugin) error {
		plugin.SupportedFeatures = 1 // optional fields of proto3
		_, err := plugin.NewGeneratedFile(output, "").Write([]byte(document(plugin.Files)))
		return err
	})
}

// document returns the whole document.
func document(files []*protogen.File) string {
	var b strings.Builder
	b.WriteString(intro)
	for _, file := range files {
		if file.Generate && len(file.Services) > 0 {
			writeFile(&b, file)
		}
	}
	for _, file := range files {
		if file.Generate && len(file.Services) == 0 {
			writeFile(&b, file)
		}
	}
	return b.String()
}

func writeFile(b *strings.Builder, file *protogen.File) {
	title := string(file.Desc.Package())
	for _, service := range file.Services {
		title = string(service.Desc.Name())
	}
	fmt.Fprintf(b, "\n## %s\n\n", title)
	name := path.Base(file.Desc.Path())
	fmt.Fprintf(b, "`%s`, from [%s](../../proto/%s).\n", file.Desc.Package(), name, file.Desc.Path())
	for _, comment := range append([]protogen.Comments{protogen.Comments(headOf(file))}, commentsOf(file.Services)...) {
		if text := plain(comment); text != "" {
			fmt.Fprintf(b, "\n%s\n", text)
		}
	}
	for _, service := range file.Services {
		for _, method := range service.Methods {
			writeMethod(b, method)
		}
	}
	for _, message := range file.Messages {
		writeMessage(b, message)
	}
	for _, enum := range file.Enums {
		fmt.Fprintf(b, "\n### %s\n\n%s\n\n| value | meaning |\n|---|---|\n", anchored(enum.Desc), plain(enum.Comments.Leading))
		for _, value := range enum.Values {
			fmt.Fprintf(b, "| `%s` = %d | %s |\n", value.Desc.Name(), value.Desc.Number(), cell(value.Comments.Leading))
		}
	}
}

// headOf returns the comment at the top of a file, which belongs to its syntax.
func headOf(file *protogen.File) string {
	return file.Desc.SourceLocations().ByPath(protoreflect.SourcePath{12}).LeadingComments
}

func commentsOf(services []*protogen.Service) []protogen.Comments {
	var all []protogen.Comments
	for _, service := range services {
		all = append(all, service.Comments.Leading)
	}
	return all
}

func writeMethod(b *strings.Builder, method *protogen.Method) {
	fmt.Fprintf(b, "\n### %s\n\n", method.Desc.Name())
	answer := link(method.Output.Desc)
	if method.Desc.IsStreamingServer() {
		answer = "a stream of " + answer
	}
	fmt.Fprintf(b, "- request: %s\n- response: %s\n\n%s\n", link(method.Input.Desc), answer, plain(method.Comments.Leading))
}

func writeMessage(b *strings.Builder, message *protogen.Message) {
	fmt.Fprintf(b, "\n### %s\n\n%s\n", anchored(message.Desc), plain(message.Comments.Leading))
	if len(message.Fields) == 0 {
		return
	}
	b.WriteString("\n| field | type | meaning |\n|---|---|---|\n")
	for _, field := range message.Fields {
		fmt.Fprintf(b, "| `%s` = %d | %s | %s |\n", field.Desc.Name(), field.Desc.Number(), typeOf(field.Desc),
			cell(field.Comments.Leading))
	}
}

// anchored returns the heading of a message or an enum: its name with the last word of its package's service, because
// two services may have a message of the same name.
func anchored(d protoreflect.Descriptor) string {
	return strings.TrimPrefix(string(d.FullName()), "quartet.")
}

// link returns a link to a message or an enum of the contracts, or the name of one of others.
func link(d protoreflect.Descriptor) string {
	name := anchored(d)
	if name == string(d.FullName()) {
		return "`" + name + "`"
	}
	return fmt.Sprintf("[%s](#%s)", d.Name(), strings.ToLower(strings.ReplaceAll(name, ".", "")))
}

// typeOf returns the type of a field.
func typeOf(field protoreflect.FieldDescriptor) string {
	if field.IsMap() {
		return "map of " + typeOf(field.MapKey()) + " to " + typeOf(field.MapValue())
	}
	text := field.Kind().String()
	switch {
	case field.Message() != nil:
		text = link(field.Message())
	case field.Enum() != nil:
		text = link(field.Enum())
	}
	switch {
	case field.IsList():
		return "list of " + text
	case field.HasOptionalKeyword():
		return "optional " + text
	}
	return text
}

// plain returns a comment as paragraphs. Indented lines are blocks of code.
func plain(comment protogen.Comments) string {
	var out, words []string
	flush := func() {
		out = append(out, wrap(words)...)
		words = nil
	}
	for line := range strings.Lines(strings.TrimSpace(string(comment))) {
		text := strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, "   "):
			flush()
			out = append(out, "    "+text)
		case text == "":
			flush()
			out = append(out, "")
		default:
			words = append(words, strings.Fields(text)...)
		}
	}
	flush()
	return strings.Join(out, "\n")
}

// wrap returns words as lines.
func wrap(words []string) []string {
	var lines []string
	for _, word := range words {
		last := len(lines) - 1
		if last < 0 || len(lines[last])+1+len(word) > width {
			lines = append(lines, word)
			continue
		}
		lines[last] += " " + word
	}
	return lines
}

// cell returns a comment as the text of a cell of a table.
func cell(comment protogen.Comments) string {
	return strings.ReplaceAll(strings.Join(strings.Fields(string(comment)), " "), "|", `\|`)
}
