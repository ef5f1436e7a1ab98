-- What a subject refers to is found without reading what all others do.

CREATE INDEX subject_reference_subject ON subject_reference (subject, version);
